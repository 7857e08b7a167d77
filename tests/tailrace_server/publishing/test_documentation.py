"""docs/formats/stage.md, and what docs/protocol/messages says of stages, say what the code does."""

from __future__ import annotations

import xxhash
from tests.docs.test_docs import DOCS, MESSAGES, example, sections, tables

from tailrace.block import Block, digest_of_block
from tailrace.model import Level
from tailrace.wire import stage_copy_messages, stage_messages
from tailrace.wire.bodies import decode_json
from tailrace.wire.file_parts import PART_BYTES_MAX
from tailrace_server.config import StorageConfig
from tailrace_server.journal import published_record as record
from tailrace_server.publishing import cuts, kept_blocks, publisher, spreading, stage_file, stages
from tailrace_server.state import last_batches
from tailrace_server.state.last_batches import BatchVerdict, LastBatch, PartMark, decide

STAGE = (DOCS / "formats" / "stage.md").read_text()
FEED, ID = bytes(range(0x10, 0x20)), b"s" * 16


def size_of(table):
    """Where the last field of a table of offsets ends; AssertionError where they do not lie back to back."""
    place = 0
    for offset, nbytes, _ in table:
        assert int(offset) == place
        place += int(nbytes)
    return place


def test_the_fields_of_the_file_lie_back_to_back():
    header, index, footer = tables(sections(STAGE)["The file"])
    assert size_of(header) == stage_file.HEADER_BYTES
    assert size_of(index) == stage_file.ENTRY_BYTES
    assert size_of(footer) == stage_file.FOOTER_BYTES
    assert stage_file.MAGIC.hex(" ") in STAGE


def test_the_bounds_are_those_of_the_code():
    storage = StorageConfig()
    assert f"at most {storage.stages_max:,} stages, {stages.OPEN_MAX} of them unsealed" in STAGE
    assert f"{storage.stage_bytes_max >> 30} GiB of them" in STAGE
    assert f"{storage.stage_kept_bytes_max >> 20} MiB of them, and for a minute" in STAGE
    assert kept_blocks.KEPT_S_MAX == 60
    assert storage.stage_age_s == 24 * 3_600
    assert stages.IDLE_S_MAX == 3_600
    assert f"At most {last_batches.SINKS_MAX:,} sinks" in STAGE
    assert f"which publish once, {last_batches.JOBS_MAX}" in STAGE
    assert f"more than {record.PUBLISH_BYTES_MAX >> 20} MiB of blocks, or {record.BLOCKS_MAX:,} blocks" in STAGE
    assert f"more than {storage.publish_bytes_max >> 20} MiB of one key" in MESSAGES["PUBLISH"]
    assert f"worked for {publisher.STEP_S:g} s answers" in MESSAGES["PUBLISH"]
    assert f"some {spreading.HELD_BYTES_MAX >> 20} MiB of them" in STAGE
    assert "for two batches at a time" in STAGE
    assert cuts.AT_ONCE_MAX == 2
    assert f"at most {stage_messages.STAGES_MAX:,}" in MESSAGES["PUBLISH"]


def test_the_rows_of_the_last_batches():
    [table] = tables(sections(STAGE)["The last batches"])
    whole, part = LastBatch(4, "o", 9, 1), LastBatch(4, "o", 9, 1, (PartMark(9, 1),))
    cases = [(None, 0, "o", 1), (whole, 5, "o", 1), (whole, 4, "o", 1), (part, 4, "o", 1), (whole, 4, "o", 2)]
    cases += [(whole, 3, "o", 1), (whole, 5, "p", 1), (whole, 4, "p", 1)]
    words = {
        BatchVerdict.PUBLISH: "published",
        BatchVerdict.SKIP: "skipped",
        BatchVerdict.CONTINUE: "published, without",
        BatchVerdict.CHANGED: "refused: batch_changed",
        BatchVerdict.BEHIND: "refused: batch_behind",
    }
    for (_, _, decided), (last, *asked) in zip(table, cases, strict=True):
        assert decided.startswith(words[decide(last, *asked)])


def test_fields_of_the_messages_lie_back_to_back():
    for name, layout in (
        ("STAGE_BLOCK", stage_messages._BLOCK),
        ("STAGED", stage_messages._STAGED),
        ("STAGE_SEAL", stage_messages._SEAL),
        ("STAGE_FETCH", stage_copy_messages._FETCH),
        ("STAGE_DATA", stage_copy_messages._DATA),
    ):
        place = 0
        for offset, nbytes, _ in tables(MESSAGES[name])[0]:
            if not nbytes:
                break
            assert int(offset) == place
            place += int(nbytes)
        assert place == layout.size


def test_examples_are_read_as_their_sections_say():
    staged = stage_messages.StageBlock.decode(example("STAGE_BLOCK").body)
    block = Block.parse(staged.block)
    assert staged[:4] == (FEED, ID, 0, 0)
    assert block.columns().keys() == [b"apple", b"pear"]
    assert stage_messages.Staged.decode(example("STAGED").body) == (1,)
    wanted = (FEED, ID, 1, 2, xxhash.xxh3_64_intdigest(block.head), Level.DISK)
    assert stage_messages.StageSeal.decode(example("STAGE_SEAL").body) == wanted
    publish = stage_messages.Publish.decode(example("PUBLISH").body)
    assert publish == (FEED, "orders-job", "orders-job", 7, (ID,), (3,), digest_of_block(block), True)
    assert decode_json(example("PUBLISH").body, "PUBLISH") == publish.to_json()
    copies = stage_copy_messages.StageCopies.decode(example("STAGE_COPIES").body)
    assert (copies.action, copies.feed_id, copies.stages, copies.address) == ("take", FEED, (ID,), "10.0.0.1:4700")
    assert decode_json(example("STAGE_COPIES").body, "STAGE_COPIES") == copies.to_json()
    fetch = stage_copy_messages.StageFetch.decode(example("STAGE_FETCH").body)
    assert fetch == (FEED, ID, 0, PART_BYTES_MAX)
    part = stage_copy_messages.StageData.decode(example("STAGE_DATA"), fetch._replace(nbytes=8))
    assert (part.file_bytes, bytes(part.data)) == (4_864, stage_file.encode_header(FEED, ID)[:8])
    told = stage_messages.SinksTold.decode(example("SINKS").body)
    assert last_batches.from_json(told.value) == {"orders-job": LastBatch(7, "orders-job", 42, publish.digest)}
    for name in ("PUBLISH", "SINKS", "STAGE_COPIES"):
        listed = [row[0] for row in tables(MESSAGES[name])[0]]
        assert listed == list(decode_json(example(name).body, name))
