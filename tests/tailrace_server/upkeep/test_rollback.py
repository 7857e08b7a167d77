"""Rolling back: what goes, where it is kept, and what is left."""

import json
import os

import pytest
import trio
from tests.memory_disk import Crashed

from tailrace.block import encode_block
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.host.disk import read_file
from tailrace_server.journal import RecordKind, open_journal
from tailrace_server.offline.repair import repair
from tailrace_server.offline.verify import verify
from tailrace_server.partition.branching import begin_branch
from tailrace_server.partition.published import publish
from tailrace_server.partition.replica_apply import apply_block, follow_log
from tailrace_server.upkeep.rollback import roll_back

V = FailoverEntry(b"v" * 16, 2, 2)


@pytest.fixture(params=[None, 3_600], ids=["for good", "with ttls"])
async def held(request, engine):
    """Segments (0, 2] and (2, 4], and a tree of 5 and 6 to 7; all rows with or without a ttl."""
    partition = engine.create()
    await engine.flusher.write_feeds()
    for first in (1, 3):
        engine.put(partition, (b"a", b"%d" % first), (b"b", b"%d" % (first + 1)), ttl=request.param)
        await engine.flusher.flush(partition)
    engine.put(partition, (b"c", b"5"), ttl=request.param)
    engine.put(partition, (b"d", b"6"), (b"a", b"7"), ttl=request.param)
    return partition


@pytest.mark.parametrize(("seq", "stands"), [(9, 7), (7, 7), (6, 6), (5, 5), (4, 4), (3, 3), (2, 2), (1, 1), (0, 0)])
async def test_it_stands_at_the_end_of_a_block_or_within_a_segment(engine, held, seq, stands):
    assert (
        await roll_back(engine.node.storage, held, seq, held.log, engine.node.leaderships.system.on_shortfall) == stands
    )
    assert (held.high_seq, held.durable_seq, held.rollbacks) == (stands, stands, 1)
    held.check()
    state = dict(engine.written[held.feed_id, 0][:stands])
    assert engine.get(held, b"a", b"b", b"c", b"d") == [state.get(key) for key in (b"a", b"b", b"c", b"d")]
    for _ in range(2):  # what the journal held does not come back
        engine.kill()
        again = engine.partition()
        assert (again.high_seq, again.rollbacks) == (stands, 1)
        assert engine.get(again, b"a", b"b", b"c", b"d") == [state.get(key) for key in (b"a", b"b", b"c", b"d")]


async def test_blocks_are_merged_while_the_rows_above_are_put_into_lost(engine):
    """A merged block that crosses the point would go as a whole, with rows that the leader has."""
    partition = engine.create()
    for number in range(64):
        engine.put(partition, (b"%d" % number, b"1"))

    async def merge():
        await engine.flusher.merger.merge(partition)
        assert partition.tree.block_count < 64

    engine.workers.begin = merge
    on_shortfall = engine.node.leaderships.system.on_shortfall
    assert await roll_back(engine.node.storage, partition, 40, partition.log, on_shortfall) == 40
    assert (partition.high_seq, partition.tree.last_seq) == (40, 40)
    partition.check()
    assert engine.get(partition, b"39", b"40") == [b"1", None]


@pytest.mark.parametrize("seq", [5, 7, 8])
async def test_a_point_inside_of_a_published_batch(engine, held, seq):
    """A flush does not divide a batch: it has to take all of it, since none ends at the block."""
    blocks = [encode_block([b"e", b"f"], [b"%d" % number] * 2, partition=0, compress=False) for number in (8, 10)]
    publish(held, blocks, "sink", 1, "origin", engine.node.storage.journal, now_us=engine.clock.wall_us())
    engine.node.storage.wrote(held)
    with trio.fail_after(60):
        stands = await roll_back(engine.node.storage, held, seq, held.log, engine.node.leaderships.system.on_shortfall)
    assert (stands, held.high_seq) == (seq, seq)
    held.check()


async def test_what_goes_is_kept(engine, held, caplog):
    paths = [segment.path for segment in held.chain.segments]
    kept = bytes(engine.disk.content(paths[1]))
    await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall)
    await engine.flusher.pass_once()
    assert engine.disk.exists(paths[0])
    assert not engine.disk.exists(paths[1])
    [time] = engine.files("/data/lost")
    lost = f"/data/lost/{time}"
    assert bytes(engine.disk.content(paths[1].replace("/data", lost))) == kept
    lines = [json.loads(line) for line in read_file(engine.disk, f"{lost}/index.jsonl").splitlines()]
    assert [(line["lost"], line["first_seq"], line["last_seq"]) for line in lines] == [
        ("rows", 4, 4),
        ("exported", 5, 5),
        ("exported", 6, 7),
    ]
    assert engine.files(f"{lost}/blocks") == [f"{held.feed_id.hex()}-0"]
    assert f"partition 0 of feed orders is rolled back: 4 rows went to lost/{time}" in caplog.text


async def test_the_record_is_durable_before_the_manifest(engine, held):
    order = []

    def before(name, path):
        if "/journal/" in path and name == "sync":
            order.append(("journal", engine.node.storage.journal.written))
        if name == "rename" and path.endswith("MANIFEST.new"):
            order.append(("manifest", engine.node.storage.journal.synced))

    engine.disk.before = before
    await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall)
    assert [what for what, _ in order[-2:]] == ["journal", "manifest"]
    kinds = [record.kind for record in _records(engine)]
    assert kinds[-1] is RecordKind.ROLLED_BACK


def _records(engine):
    return list(open_journal(engine.disk.fork(), "/data/journal")[1].records)


async def test_a_crash_before_the_manifest_is_made_good(engine, held):
    def before(name, path):
        if name == "rename" and path.endswith("MANIFEST.new"):
            raise Crashed

    engine.disk.before = before
    with pytest.raises(Crashed):
        await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall)
    engine.disk.kill()
    assert verify(engine.disk.fork(), "/data").problems == []
    for _ in range(2):
        engine.kill()
        again = engine.partition()
        assert (again.high_seq, len(again.chain.segments), again.rollbacks) == (3, 2, 1)
        assert engine.get(again, b"a", b"b", b"c") == [b"3", b"2", None]


async def test_a_segment_that_a_start_has_cut_is_there_when_a_manifest_names_it(engine, held):
    def before(name, path):
        if name == "rename" and path.endswith("MANIFEST.new"):
            raise Crashed

    engine.disk.before = before
    with pytest.raises(Crashed):
        await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall)
    engine.disk.kill()
    engine.kill()
    again = engine.partition()
    assert all(engine.disk.exists(segment.path) for segment in again.chain.segments)
    await engine.node.storage.installer.write(again)
    engine.kill()
    once_more = engine.partition()
    assert once_more.damage is None
    assert engine.get(once_more, b"a", b"b", b"c") == [b"3", b"2", None]


async def test_what_a_start_takes_out_of_a_chain_goes_with_the_next_manifest(engine, held):
    def before(name, path):
        if name == "rename" and path.endswith("MANIFEST.new"):
            raise Crashed

    engine.disk.before = before
    with pytest.raises(Crashed):
        await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall)
    engine.disk.kill()
    engine.kill()
    engine.kill()  # the manifest still names it, so a start needs the file
    again = engine.partition()
    await engine.node.storage.installer.write(again)
    await engine.flusher.trim()
    assert set(engine.segments(again)) == {os.path.basename(segment.path) for segment in again.chain.segments}


@pytest.mark.parametrize("part", ["MANIFEST.new", ".seg.new"])
async def test_a_repair_of_a_rollback_that_was_cut_short_takes_nothing_that_is_good(engine, held, part):
    def before(name, path):
        if name == "rename" and path.endswith(part):
            raise Crashed

    engine.disk.before = before
    with pytest.raises(Crashed):
        await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall)
    engine.disk.kill()
    repair(engine.disk, "/data", engine.host.randomness, engine.clock, "20260131-154500")
    engine.kill()
    again = engine.partition()
    assert again.high_seq == (3 if part == "MANIFEST.new" else 7)
    assert engine.get(again, b"a", b"b") == ([b"3", b"2"] if part == "MANIFEST.new" else [b"7", b"4"])


async def test_a_segment_that_is_cut_is_one_like_any_other(engine, held):
    await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall)
    engine.numbers.clear()
    engine.put(held, (b"b", b"4"), producer=8)
    await engine.flusher.flush(held)
    await engine.flusher.pass_once()
    names = engine.segments(held)
    assert len(names) == 3
    for segment in held.chain.segments:
        assert segment.verify() == []
    engine.kill()
    again = engine.partition()
    assert [segment.identity.last_seq for segment in again.chain.segments] == [2, 3, 4]
    assert engine.get(again, b"a", b"b", b"c") == [b"3", b"4", None]
    assert engine.segments(again) == names


async def test_a_deduplicated_segment_goes_whole(engine):
    partition = engine.create()
    for number in range(12):
        engine.put(partition, (b"a", b"%d" % number), (b"b", b""))
        await engine.flusher.flush(partition)
    assert await engine.node.storage.compactor.compact(partition, engine.node.feeds.of_id(partition.feed_id).info)
    segment = next(segment for segment in partition.chain.segments if segment.identity.deduplicated)
    after_seq = segment.identity.after_seq
    assert (
        await roll_back(
            engine.node.storage, partition, after_seq + 3, partition.log, engine.node.leaderships.system.on_shortfall
        )
        == after_seq
    )
    engine.kill()
    assert engine.partition().high_seq == after_seq


async def test_what_goes_below_the_point_that_was_asked_for_is_told_before_it_is_gone(engine):
    partition = engine.create()
    for number in range(12):
        engine.put(partition, (b"a", b"%d" % number), (b"b", b""))
        await engine.flusher.flush(partition)
    assert await engine.node.storage.compactor.compact(partition, engine.node.feeds.of_id(partition.feed_id).info)
    engine.put(partition, (b"a", b"last"))
    told = []
    engine.node.leaderships.system.on_shortfall = lambda *what: told.append((*what, partition.high_seq))
    await roll_back(engine.node.storage, partition, 24, partition.log, engine.node.leaderships.system.on_shortfall)
    assert told == []  # all of that is still there
    segment = next(segment for segment in partition.chain.segments if segment.identity.deduplicated)
    seq = segment.identity.after_seq + 3
    await roll_back(engine.node.storage, partition, seq, partition.log, engine.node.leaderships.system.on_shortfall)
    assert told == [(partition, partition.log.term, seq, 24)]


async def test_a_segment_that_cannot_be_read_goes_whole(engine, held):
    content = engine.disk.content(held.chain.segments[1].path)
    content[100] ^= 1
    assert await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall) == 2
    engine.kill()
    assert engine.partition().high_seq == 2


async def test_a_start_that_cannot_cut_a_segment_says_that_it_is_damaged(engine, held):
    path = held.chain.segments[1].path

    def before(name, path):
        if name == "rename" and path.endswith("MANIFEST.new"):
            raise Crashed

    engine.disk.before = before
    with pytest.raises(Crashed):
        await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall)
    engine.disk.content(path)[100] ^= 1
    engine.kill()
    assert path in str(engine.partition().damage)
    assert path in engine.node.storage.damages


@pytest.mark.parametrize("part", ["/lost/", ".seg"])
async def test_a_disk_that_refuses_leaves_what_was(engine, held, part):
    names, standing = engine.segments(held), held.high_seq
    engine.fail("sync", part)
    with pytest.raises(OSError, match="Input/output"):
        await roll_back(engine.node.storage, held, 3, held.log, engine.node.leaderships.system.on_shortfall)
    assert (held.high_seq, held.rollbacks) == (standing, 0)
    held.check()
    engine.put(held, (b"c", b"8"))
    await engine.flusher.flush(held)  # its manifest is the one that lets go of what was made
    assert engine.segments(held)[:2] != []
    assert {segment.path.split("/")[-1] for segment in held.chain.segments} == set(engine.segments(held)) >= set(names)


async def test_a_reader_keeps_its_segment_though_the_manifest_of_the_rollback_failed(engine, held):
    storage = engine.node.storage
    read = held.chain.segments[1]
    storage.pins.pin(read)
    engine.fail("rename", "MANIFEST")
    with pytest.raises(OSError, match="rror"):
        await roll_back(storage, held, 2, held.log, engine.node.leaderships.system.on_shortfall)
    await engine.flusher.trim()
    assert not storage.pins.is_retired(read), "the manifest on disk names it"
    assert len(engine.segments(held)) == 2
    await storage.installer.settle(held)
    await engine.flusher.trim()
    assert storage.pins.is_retired(read)
    storage.store.segment_files.close_idle()
    assert read.verify() == []
    storage.pins.unpin(read)
    await engine.flusher.trim()
    assert len(engine.segments(held)) == 1
    engine.kill()
    assert engine.partition().high_seq == 2


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_without_a_reader_the_segment_goes_with_the_next_manifest(engine, held, is_dropped):
    storage = engine.node.storage
    engine.fail("rename", "MANIFEST")
    with pytest.raises(OSError, match="rror"):
        await roll_back(storage, held, 2, held.log, engine.node.leaderships.system.on_shortfall)
    if is_dropped:
        engine.drop()
    else:
        await storage.installer.settle(held)
    await engine.flusher.trim()
    await engine.flusher.trim()
    assert len(engine.segments(held)) == (not is_dropped)


async def test_results_of_producers_above_are_forgotten(engine, held):
    await roll_back(engine.node.storage, held, 4, held.log, engine.node.leaderships.system.on_shortfall)
    for partition in (held, None):
        if partition is None:
            engine.kill()
            partition = engine.partition()
        [entry], _ = partition.producers.snapshot(engine.clock.monotonic())
        assert (entry.last_number, entry.results[-1][1].last_seq) == (2, 4)


async def test_streams_end_and_the_history_changes_before_anything_of_the_other_one(engine, held):
    seen = []
    held.on_history_changed = lambda: seen.append((held.high_seq, held.log))
    log = held.log
    await roll_back(engine.node.storage, held, 2, FailoverLog([V, *log]), engine.node.leaderships.system.on_shortfall)
    assert seen[0] == (7, log)
    assert held.log == FailoverLog([V, *log])


async def test_who_has_led_forgets_what_an_earlier_leader_told(engine):
    """After a handover no log is told again where all have the same: the next block is on the branch that goes on."""
    partition = engine.create()
    engine.put(partition, (b"a", b"1"))
    follow_log(partition, partition.log, engine.node.storage.journal)
    begin_branch(partition, b"w" * 16, engine.node.storage.journal)
    led = partition.log
    block = encode_block([b"b"], [b"2"], partition=0, compress=False).stamped(2, partition.last_timestamp)
    apply_block(partition, block, engine.node.storage.journal, engine.clock.monotonic())
    assert partition.log == led
    partition.check()
