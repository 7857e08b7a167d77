"""Rolling back: what goes, where it is kept, and what is left."""

import json

import pytest
from tests.memory_disk import Crashed

from tailrace.failover import FailoverEntry, FailoverLog
from tailrace_server.host.disk import read_file
from tailrace_server.journal import RecordKind, open_journal
from tailrace_server.upkeep.rollback import point_below

V = FailoverEntry(b"v" * 16, 2, 2)


@pytest.fixture
async def held(engine):
    """Segments (0, 2] and (2, 4], and a tree of 5 and 6 to 7."""
    partition = engine.create()
    await engine.flusher.write_feeds()
    for first in (1, 3):
        engine.put(partition, (b"a", b"%d" % first), (b"b", b"%d" % (first + 1)))
        await engine.flusher.flush(partition)
    engine.put(partition, (b"c", b"5"))
    engine.put(partition, (b"d", b"6"), (b"a", b"7"))
    return partition


@pytest.mark.parametrize(("seq", "stands"), [(9, 7), (7, 7), (6, 5), (5, 5), (4, 4), (3, 2), (2, 2), (1, 0), (0, 0)])
async def test_it_stands_at_the_end_of_a_block_or_of_a_segment(engine, held, seq, stands):
    assert point_below(held, seq).seq == stands
    assert await engine.node.roll_back(held, seq, held.log) == stands
    assert (held.high_seq, held.durable_seq, held.rollbacks) == (stands, stands, 1)
    held.check()
    state = dict(engine.written[held.feed_id, 0][:stands])
    assert engine.get(held, b"a", b"b", b"c", b"d") == [state.get(key) for key in (b"a", b"b", b"c", b"d")]
    for _ in range(2):  # what the journal held does not come back
        engine.kill()
        again = engine.partition()
        assert (again.high_seq, again.rollbacks) == (stands, 1)
        assert engine.get(again, b"a", b"b", b"c", b"d") == [state.get(key) for key in (b"a", b"b", b"c", b"d")]


async def test_what_goes_is_kept(engine, held):
    paths = [segment.path for segment in held.chain.segments]
    kept = bytes(engine.disk.content(paths[1]))
    await engine.node.roll_back(held, 3, held.log)
    await engine.flusher.pass_once()
    assert engine.disk.exists(paths[0])
    assert not engine.disk.exists(paths[1])
    [time] = engine.files("/data/lost")
    lost = f"/data/lost/{time}"
    assert bytes(engine.disk.content(paths[1].replace("/data", lost))) == kept
    lines = [json.loads(line) for line in read_file(engine.disk, f"{lost}/index.jsonl").splitlines()]
    assert [(line["lost"], line["first_seq"], line["last_seq"]) for line in lines] == [
        ("rows", 3, 4),
        ("exported", 5, 5),
        ("exported", 6, 7),
    ]
    assert engine.files(f"{lost}/blocks") == [f"{held.feed_id.hex()}-0"]


async def test_the_record_is_durable_before_the_manifest(engine, held):
    order = []

    def before(name, path):
        if "/journal/" in path and name == "sync":
            order.append(("journal", engine.node.journal.written))
        if name == "rename" and path.endswith("MANIFEST.new"):
            order.append(("manifest", engine.node.journal.synced))

    engine.disk.before = before
    await engine.node.roll_back(held, 3, held.log)
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
        await engine.node.roll_back(held, 3, held.log)
    for _ in range(2):
        engine.kill()
        again = engine.partition()
        assert (again.high_seq, len(again.chain.segments), again.rollbacks) == (2, 1, 1)
        assert engine.get(again, b"a", b"b", b"c") == [b"1", b"2", None]


async def test_results_of_producers_above_are_forgotten(engine, held):
    await engine.node.roll_back(held, 4, held.log)
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
    await engine.node.roll_back(held, 2, FailoverLog([V, *log]))
    assert seen[0] == (7, log)
    assert held.log == FailoverLog([V, *log])
