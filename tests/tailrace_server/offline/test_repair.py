import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace_server.made_directory import DATA, rows_of
from tests.tailrace_server.offline.damage import TIME, check_repaired, files_of, make_directory, repaired

from tailrace.block import Block
from tailrace.failover import ResumeReason, resume_point
from tailrace_server.host.disk import read_file
from tailrace_server.identity import BadDirectory
from tailrace_server.journal import DirectoryInUse
from tailrace_server.offline import marks
from tailrace_server.offline.verify import verify

LOST = f"{DATA}/lost/{TIME}"


@pytest.fixture(scope="module")
def stopped():
    made = make_directory()
    made.stop()
    return made


def state(disk):
    return {path: bytes(disk.names_now[path].content) for path in files_of(disk)}


def index(disk):
    return [json.loads(line) for line in read_file(disk, f"{LOST}/index.jsonl").splitlines()]


def segments_of(disk):
    return [path for path in files_of(disk) if path.endswith(".seg")]


def journal_of(disk):
    return [path for path in files_of(disk) if "/journal/" in path]


def test_of_a_good_directory_nothing_is_changed(stopped):
    disk = stopped.disk.fork()
    before = state(disk)
    outcome = repaired(stopped, disk)
    assert outcome.actions == []
    assert state(disk) == before, "CLEAN is still there"


def damage(disk, rnd):
    path = rnd.choice(files_of(disk))
    content = disk.content(path)
    kind = rnd.choice(["flip", "flip", "flip", "cut", "zeros", "remove"])
    if kind == "flip":
        disk.flip(path, rnd.randrange(8 * len(content)))
    elif kind == "cut":
        del content[rnd.randrange(len(content)) :]
    elif kind == "zeros":
        begin = rnd.randrange(len(content))
        content[begin : begin + 512] = bytes(len(content[begin : begin + 512]))
    else:
        disk.remove(path)
        disk.sync_directory(path.rpartition("/")[0])
    return path, kind


@settings(max_examples=50)
@given(st.integers(0, 2**32))
def test_a_damaged_directory_starts_after_a_repair_and_all_that_it_lacks_is_listed(stopped, seed):
    rnd = random.Random(seed)
    disk = stopped.disk.fork()
    path, kind = damage(disk, rnd)
    if kind == "remove" and path.endswith("/CLEAN"):
        return
    dry = repaired(stopped, disk.fork(), is_dry=True)
    found = verify(disk, DATA).problems
    before = state(disk)
    outcome = repaired(stopped, disk)
    assert bool(outcome.actions) == bool(found)
    assert (dry.actions, dry.lost.seqs) == (outcome.actions, outcome.lost.seqs)
    if found:
        assert not disk.exists(f"{DATA}/CLEAN")
        assert marks.is_restored(disk, DATA)
    assert verify(disk, DATA).problems == []
    kept = set(state(disk).values())
    assert all(data in kept for path, data in before.items()), "nothing is deleted, only moved"
    check_repaired(stopped, disk, outcome.lost.seqs)


def test_a_dry_run_changes_nothing(stopped):
    for path in files_of(stopped.disk):
        disk = stopped.disk.fork()
        disk.flip(path, 8 * 20)
        before = state(disk)
        repaired(stopped, disk, is_dry=True)
        assert state(disk) == before


def kinds_of_damage():
    made = make_directory()
    made.stop()
    disk = made.disk.fork()
    disk.flip(segments_of(disk)[0], 8 * 150)  # in a block
    yield "block of a segment", made, disk
    disk = made.disk.fork()
    disk.remove(segments_of(disk)[-1])
    disk.sync_directory(segments_of(made.disk)[-1].rpartition("/")[0])
    yield "missing segment", made, disk
    disk = made.disk.fork()
    disk.flip(next(path for path in files_of(disk) if path.endswith("0/MANIFEST")), 99)
    disk.flip(journal_of(disk)[-1], 8 * 300)
    disk.flip(f"{DATA}/NODE", 8 * 60)
    yield "manifest, journal and node", made, disk


@pytest.mark.parametrize(("made", "damaged"), [pytest.param(m, d, id=name) for name, m, d in kinds_of_damage()])
def test_a_repair_that_is_interrupted_anywhere_goes_on(made, damaged, memory_disk):
    rnd = random.Random(3)
    for crash_at in range(10_000):
        disk = damaged.fork()
        before = set(state(disk).values())
        disk.crash_at(crash_at)
        try:
            repaired(made, disk)
        except memory_disk.Crashed:
            disk.cut_power(rnd) if crash_at % 2 else disk.kill()
            if marks.is_marked(disk, DATA, marks.REPAIRING_NAME):
                with pytest.raises(BadDirectory, match="repair"):
                    made.start_on(disk.fork())
            repaired(made, disk)
            assert verify(disk, DATA).problems == []
            assert not marks.is_marked(disk, DATA, marks.REPAIRING_NAME)
            assert before <= set(state(disk).values()), "nothing is deleted, only moved"
            seqs = [
                (bytes.fromhex(line["feed"]), line["partition"], line["first_seq"], line["last_seq"])
                for line in index(disk)
                if line["lost"] in ("rows", "exported")
            ]
            check_repaired(made, disk, seqs)
        else:
            return
    raise AssertionError("the repair has more steps than this test tries")


def lose_a_block(stopped):
    """A damaged block in a segment of partition 0 of "orders" that no journal has any more."""
    disk = stopped.disk.fork()
    orders = stopped.start_on(stopped.disk.fork()).feeds.named("orders")
    [*_, segment] = orders.partitions[0].chain.segments[:1]
    disk.flip(segment.path, 8 * (64 + 96 + 30))
    return disk, orders, segment


def test_consumers_of_a_partition_that_lost_rows_begin_at_0(stopped):
    disk, before, segment = lose_a_block(stopped)
    repaired(stopped, disk)
    node = stopped.start_on(disk)
    for old, new in zip(before.partitions, node.feeds.named("orders").partitions, strict=True):
        resume = resume_point(
            old.log, old.high_seq, old.high_seq, old.high_seq, None, new.log, new.high_seq, new.purge_seq
        )
        assert new.log.term > old.log.term + marks.RESTORED_TERMS - 1, (
            "no consumer takes the node for one that is behind"
        )
        assert new.high_seq == old.high_seq
        if old.id == 0:
            assert resume == (0, ResumeReason.NO_COMMON_BRANCH)
            assert 0 < new.purge_seq <= segment.identity.last_seq
            [damaged, *_] = new.chain.segments
            assert damaged.identity.deduplicated, "no snapshot ends inside of it"
            assert damaged.identity.last_seq == segment.identity.last_seq
        else:
            assert resume.seq == old.high_seq, "a partition that lost nothing goes on"
            assert new.purge_seq == 0


def test_what_is_lost_of_a_segment_is_listed_to_the_row(stopped):
    disk, _, segment = lose_a_block(stopped)
    [block], _ = segment.read_blocks(0, 1)
    repaired(stopped, disk)
    [line] = index(disk)
    assert line["lost"] == "rows"
    assert (line["partition"], line["first_seq"], line["last_seq"], line["rows"]) == (
        0,
        block.header.first_seq,
        block.header.last_seq,
        block.rows,
    )
    assert line["file"] == segment.path.removeprefix(f"{DATA}/")
    assert line["offset"] == 64
    keys = list(map(bytes.decode, block.columns().keys()))
    assert set(line["keys"]) <= set(keys), "only keys whose hash proves them"
    assert len(line["keys"]) >= len(keys) - 1
    assert disk.exists(f"{LOST}/{line['file']}"), "the damaged file is kept"


def test_a_segment_of_which_no_row_is_lost_costs_no_consumer_anything(stopped):
    disk = stopped.disk.fork()
    orders = stopped.start_on(stopped.disk.fork()).feeds.named("orders")
    segment = orders.partitions[0].chain.segments[0]
    disk.flip(segment.path, 8 * (segment.nbytes - 150))  # in the identity
    outcome = repaired(stopped, disk)
    assert outcome.lost.seqs == []
    node = stopped.start_on(disk)
    assert rows_of(node) == stopped.rows
    old, new = orders.partitions[0], node.feeds.named("orders").partitions[0]
    resume = resume_point(old.log, old.high_seq, old.high_seq, old.high_seq, None, new.log, new.high_seq, new.purge_seq)
    assert resume.seq == old.high_seq


def test_rows_that_the_journal_still_has_are_not_lost(stopped):
    made = make_directory()
    made.flush("log")
    made.stop()
    disk = made.disk.fork()
    log = made.start_on(made.disk.fork()).feeds.named("log")
    segment = log.partitions[0].chain.segments[-1]
    disk.flip(segment.path, 8 * (64 + 96 + 3))
    outcome = repaired(made, disk)
    assert outcome.lost.seqs == []
    assert rows_of(made.start_on(disk)) == made.rows


def test_blocks_behind_a_gap_are_exported_with_an_index(stopped):
    disk = stopped.disk.fork()
    path = journal_of(disk)[-2]
    disk.flip(path, 8 * (64 + 96 + 100))
    outcome = repaired(stopped, disk)
    lines = [line for line in index(disk) if line["lost"] == "exported"]
    assert lines
    for line in lines:
        data = read_file(disk, f"{LOST}/{line['file']}")
        block = Block.parse(data[line["offset"] : line["offset"] + line["bytes"]])
        assert (block.header.first_seq, block.header.last_seq) == (line["first_seq"], line["last_seq"])
        assert list(map(bytes.decode, block.columns().keys())) == line["keys"]
    assert sum(line["rows"] for line in lines) == outcome.lost.exported_rows
    assert disk.exists(f"{LOST}/{path.removeprefix(f'{DATA}/')}")
    node, _ = check_repaired(stopped, disk, outcome.lost.seqs)
    for partition in node.feeds.partitions():
        assert partition.log[0].base == partition.high_seq


def test_a_feed_whose_file_is_lost_keeps_its_rows_under_another_name(stopped):
    disk = stopped.disk.fork()
    orders = stopped.start_on(stopped.disk.fork()).feeds.named("orders")
    path = f"{DATA}/feeds/{orders.info.feed_id.hex()}/FEED"
    disk.flip(path, 8 * 50)
    repaired(stopped, disk)
    found = stopped.start_on(disk).feeds.of_id(orders.info.feed_id)
    assert found.info.name == f"recovered-{orders.info.feed_id.hex()}"
    assert len(found.partitions) == 2


def test_a_directory_that_a_node_has_or_that_is_no_such_is_refused(stopped):
    disk = stopped.disk.fork()
    lock = disk.lock(f"{DATA}/LOCK")
    with pytest.raises(DirectoryInUse):
        repaired(stopped, disk)
    lock.close()
    marks.mark(disk, DATA, marks.BACKUP_NAME)
    with pytest.raises(BadDirectory, match="tailrace restore"):
        repaired(stopped, disk)


def test_a_mark_of_a_repair_that_cannot_be_used_says_what_to_do(stopped):
    disk = stopped.disk.fork()
    disk.create(f"{DATA}/{marks.REPAIRING_NAME}").close()
    with pytest.raises(BadDirectory, match="remove it, and repair again"):
        repaired(stopped, disk)


def test_a_beginning_of_the_journal_that_is_missing_is_listed_by_the_mark_of_the_clean_stop():
    made = make_directory()
    made.create("late", 1)
    made.write("late", [(b"k", bytes(3_000))])
    made.node.journal._rotate()
    made.stop()
    disk = made.disk.fork()
    for path in journal_of(disk)[:-1]:
        disk.remove(path)
        disk.sync_directory(f"{DATA}/journal")
    assert verify(disk, DATA).problems
    outcome = repaired(made, disk)
    assert verify(disk, DATA).problems == []
    feed_id = made.start_on(made.disk.fork()).feeds.named("late").info.feed_id
    assert (feed_id, 0, 1, 1) in outcome.lost.seqs
    assert feed_id not in made.start_on(disk).feeds


def test_a_partition_of_which_nothing_can_be_read_begins_empty(stopped):
    disk = stopped.disk.fork()
    for path in files_of(disk):
        if "/feeds/" in path and not path.endswith("/FEED"):
            content = disk.content(path)
            content[:] = bytes(len(content))
    outcome = repaired(stopped, disk)
    assert verify(disk, DATA).problems == []
    _, missing = check_repaired(stopped, disk, outcome.lost.seqs)
    assert missing
    assert {line["lost"] for line in index(disk)} == {"rows", "exported", "bytes"}
