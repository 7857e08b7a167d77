"""How long a start takes is told alike by who writes records, by who reads one, and by who reads many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory_disk import MemoryDisk

from tailrace.block import encode_block
from tailrace_server.journal import RecordKind, open_journal
from tailrace_server.journal.published_record import encode_published
from tailrace_server.state.last_batches import LastBatch

FEED, BRANCH = b"F" * 16, b"B" * 16
specs = st.lists(
    st.one_of(
        st.tuples(st.just("block"), st.integers(1, 20)),
        st.tuples(st.just("published"), st.integers(0, 3)),
        st.tuples(st.just("control"), st.integers(0, 300)),
    ),
    max_size=30,
)


def write(journal, kind, count):
    block = encode_block([b"k"], [b"v" * count], partition=0).stamped(1, 1)
    if kind == "block":
        journal.append_block(FEED, 0, BRANCH, block)
    elif kind == "published":
        blocks = [block.stamped(number, 1) for number in range(1, count + 1)]
        journal.append_published(FEED, 0, BRANCH, *encode_published({"sink": LastBatch(1, "here", 1)}, blocks))
    else:
        journal.append(RecordKind.FLUSHED, FEED, 0, bytes(count))


@pytest.mark.parametrize("by_columns", [True, False])
@given(specs=specs, replaced_max=st.sampled_from([0, 1 << 20]), synced=st.integers(0, 30))
def test_a_start_counts_what_the_writer_has_counted(by_columns, specs, replaced_max, synced):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrace_server.journal.recovery.REPLACE_BYTES_MAX", replaced_max)
        if not by_columns:
            for module in ("inspection", "recovery"):
                patch.setattr(f"tailrace_server.journal.{module}.read_stretch", lambda *_: None)
        disk = MemoryDisk()
        journal, _ = open_journal(disk, "/journal", file_bytes_max=3_000)
        for number, spec in enumerate(specs):
            if number == synced:
                journal.sync()
            write(journal, *spec)
        before = journal.statistics()
        disk.kill()
        journal, _ = open_journal(disk, "/journal", file_bytes_max=3_000)
        after = journal.statistics()
        assert after.records == before.records
        header_seconds = 64 * 5e-9 * (after.files - before.files)
        assert after.replay_seconds == pytest.approx(before.replay_seconds + header_seconds, abs=1e-12)


def test_a_publish_costs_more_than_a_block_and_more_with_more_blocks():
    costs = {}
    for kind, count in (("block", 9), ("published", 1), ("published", 4)):
        journal, _ = open_journal(MemoryDisk(), "/journal")
        before = journal.statistics().replay_seconds
        write(journal, kind, count)
        costs[kind, count] = journal.statistics().replay_seconds - before
    assert costs["block", 9] < costs["published", 1] < costs["published", 4] < 10 * costs["block", 9]
