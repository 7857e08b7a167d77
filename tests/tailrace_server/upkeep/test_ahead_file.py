"""The file AHEAD: whole snapshots behind a checkpoint, through crashes at each call of the disk."""

import errno
import random

import pytest
from tests.blocks_of_rows import block_of
from tests.memory_disk import KEEP, LOSE, MemoryDisk

from tailrace.consuming.events import Agreed, Mutations, SnapshotEnd, SnapshotStart
from tailrace.errors import NoSpace
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.position import Position
from tailrace.wire.replica_messages import Producers
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.chain import AppliedRange
from tailrace_server.upkeep.ahead_file import HEADER_BYTES, RECORD_BYTES, AheadDamaged, AheadFile

DATA = "/data"
PATH = "/data/AHEAD"
FEED = bytes(range(16))
RANDOM = bytes(16)
PARTITION = 3
LOG = FailoverLog([FailoverEntry(b"a" * 16, 1, 0)])
NEWER = FailoverLog([FailoverEntry(b"b" * 16, 2, 30), *LOG])
NOWHERE = Position.at(FailoverLog(), 0)


@pytest.fixture
def disk():
    made = MemoryDisk()
    made.make_directory(DATA)
    return made


def create(disk, after_seq=10, random=RANDOM):
    return AheadFile.create(disk, PATH, FEED, PARTITION, after_seq, LOG, random)


def load(disk):
    return AheadFile.load(disk, PATH, FEED, PARTITION)


def rows(first, last):
    block = block_of([(b"%d" % seq, b"v%d" % seq, seq, 1_000 + seq) for seq in range(first, last + 1)])
    return Mutations(block)


def snapshot(first, last, *, by=5, purge_seq=0, complete=True, published=False, tables=True):
    blocks = [rows(begin, min(begin + by - 1, last)) for begin in range(first, last + 1, by)]
    start = SnapshotStart(PARTITION, first, last, NOWHERE, complete, purge_seq, published)
    told = [Producers(PARTITION, last, {"a": last}), SinksTold(PARTITION, last, {"s": [1]})] if tables else []
    return [start, *told, *blocks, SnapshotEnd(PARTITION, first, last, NOWHERE)]


def told(file, above_seq=0):
    """The events with their rows, in a form that compares."""
    return [comparable(event) for event in file.events(above_seq)]


def comparable(event):
    if isinstance(event, Mutations):
        return event.seqs()[:], event.keys(), event.values(), event.timestamps()[:]
    return event


def told_of(*snapshots):
    return [comparable(event) for snapshot in snapshots for event in snapshot]


def test_a_file_has_the_snapshots_that_were_appended(disk):
    file = create(disk)
    assert (file.after_seq, file.last_seq, file.log) == (10, 10, LOG)
    first, second = snapshot(11, 20), snapshot(21, 24, purge_seq=7, complete=False)
    third = snapshot(25, 25, published=True, complete=False, tables=False)
    file.append(first)
    file.append([*second, *third])
    assert file.range == AppliedRange(10, 25)
    for found in (file, load(disk)):
        assert (found.after_seq, found.last_seq, found.log) == (10, 25, LOG)
        assert told(found) == told_of(first, second, third)
    assert file.nbytes == disk.open(PATH).size()


def test_half_a_snapshot_does_not_count_until_its_end_comes(disk):
    file, whole = create(disk), snapshot(11, 20)
    file.append(whole[:4])
    assert file.last_seq == load(disk).last_seq == 10
    assert told(file) == []
    file.append(whole[4:])
    assert file.last_seq == load(disk).last_seq == 20
    assert told(file) == told_of(whole)


def test_half_a_snapshot_is_forgotten(disk):
    file = create(disk)
    file.append([*snapshot(11, 20), *snapshot(21, 40)[:4]])
    file.forget_half()
    last = snapshot(21, 22)
    file.append(last)
    for found in (file, load(disk)):
        assert found.last_seq == 22
        assert told(found) == told_of(snapshot(11, 20), last)


def test_a_restart_goes_on_behind_the_last_whole_snapshot(disk):
    create(disk).append([*snapshot(11, 20), *snapshot(21, 40)[:4]])
    disk.kill()
    file = load(disk)
    file.append(snapshot(21, 22))
    disk.kill()
    assert told(load(disk)) == told_of(snapshot(11, 20), snapshot(21, 22))


def test_rows_below_a_prefix_are_left_out(disk):
    file = create(disk)
    file.append([*snapshot(11, 20), *snapshot(21, 30)])
    start, *_, end = snapshot(21, 30)
    assert told(file, 30) == []
    assert told(file, 20) == told_of(snapshot(21, 30))
    found = told(file, 23)
    assert found[0] == start._replace(first_seq=24)
    assert found[-1] == end
    assert [seq for event in found if type(event) is tuple for seq in event[0]] == list(range(24, 31))


def test_a_run_that_is_announced_again_with_a_later_end_is_not_left_out(disk):
    file = create(disk)
    start, block, _ = snapshot(11, 20, by=10, tables=False)
    again, *rest = snapshot(21, 30, tables=False)
    file.append([start, block, again._replace(first_seq=11), *rest[:-1], rest[-1]._replace(first_seq=11)])
    found = told(file, 25)
    assert [seq for event in found if type(event) is tuple for seq in event[0]] == list(range(26, 31))
    assert found[-1].last_seq == 30


def test_no_batch_is_cut(disk):
    file = create(disk)
    file.append(snapshot(11, 20, published=True, complete=False))
    with pytest.raises(AheadDamaged, match="inside of a published batch"):
        told(file, 15)


def test_rows_of_another_history_are_dropped_whole_snapshots_only(disk):
    file = create(disk)
    file.append([*snapshot(11, 20), *snapshot(21, 30), *snapshot(31, 40)])
    file.keep_through(35)
    assert file.last_seq == 30
    file.keep_through(29)
    assert file.last_seq == 20
    file.append([Agreed(PARTITION, NEWER, 50)])
    file.append(snapshot(21, 26))
    for found in (file, load(disk)):
        assert (found.last_seq, found.log) == (26, NEWER)
        assert told(found) == told_of(snapshot(11, 20), snapshot(21, 26))
    file.keep_through(10)
    assert (file.after_seq, file.last_seq) == (10, 10)
    assert told(load(disk)) == []


def test_what_a_truncation_has_left_behind_is_no_continuation(disk):
    """After a power cut the file's new size may be missing, although what was written later is there."""
    file = create(disk)
    file.append([*snapshot(11, 12, tables=False), *snapshot(13, 14, tables=False), *snapshot(15, 16, tables=False)])
    before = bytes(disk.content(PATH))
    file.keep_through(12)
    file.append([Agreed(PARTITION, NEWER, 50), *snapshot(13, 14, tables=False)])
    data = disk.content(PATH)
    data += before[len(data) :]
    assert load(disk).last_seq == 14
    create(disk, random=b"r" * 16)
    data = disk.content(PATH)
    data += before[len(data) :]
    assert load(disk).last_seq == 10


@pytest.mark.parametrize("place", [0, 9, 15, 20, HEADER_BYTES - 1, HEADER_BYTES + RECORD_BYTES])
def test_a_file_without_its_beginning_cannot_be_used(disk, place):
    create(disk)
    disk.flip(PATH, 8 * place)
    with pytest.raises(AheadDamaged):
        load(disk)


def test_a_file_of_another_partition_or_feed_cannot_be_used(disk):
    create(disk)
    for feed_id, partition in ((FEED, 4), (bytes(16), PARTITION)):
        with pytest.raises(AheadDamaged, match="of partition 3"):
            AheadFile.load(disk, PATH, feed_id, partition)
    disk.content(PATH)[HEADER_BYTES - 1 :] = b""
    with pytest.raises(AheadDamaged, match="its header has"):
        load(disk)


def test_a_flipped_bit_ends_the_rows(disk):
    file = create(disk)
    ends = [10]
    for first in (11, 21, 31):
        file.append(snapshot(first, first + 9))
        ends.append(file.nbytes)
    good = bytes(disk.content(PATH))
    for place in range(HEADER_BYTES + RECORD_BYTES + 200, len(good), 7):
        data = disk.content(PATH)
        data[:] = good
        data[place] ^= 4
        last_seq = 10 * sum(end <= place for end in ends)
        assert load(disk).last_seq == last_seq
        if last_seq < 40:  # a file that rots while it is open
            with pytest.raises(AheadDamaged):
                told(file)


def test_a_full_disk_leaves_what_was_there(disk):
    file = create(disk)
    file.append(snapshot(11, 20))
    disk.fail("write_at", errno.ENOSPC)
    with pytest.raises(NoSpace):
        file.append(snapshot(21, 30))
    disk.before = None
    assert file.last_seq == load(disk).last_seq == 20
    file.append(snapshot(21, 25))
    assert told(load(disk)) == told_of(snapshot(11, 20), snapshot(21, 25))


def test_rows_whose_fsync_failed_do_not_count(disk):
    file = create(disk)
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.append(snapshot(11, 20))
    disk.before = None
    assert file.last_seq == 10
    file.append(snapshot(11, 15))
    disk.cut_power(LOSE)
    assert told(load(disk)) == told_of(snapshot(11, 15))


class Story:
    """What happens to a file, with the states that a crash may leave: those before and after the step under way."""

    def __init__(self, disk):
        self.disk = disk
        self.before = self.after = None  # None: there is no file

    def step(self, after, call):
        self.after = after
        result = call()
        self.before = after
        return result

    def run(self):
        one, two, three = snapshot(11, 20), snapshot(21, 30), snapshot(31, 40)
        file = self.step([], lambda: create(self.disk))
        self.step(told_of(one), lambda: file.append(one))
        self.step(told_of(one), lambda: file.append(two[:3]))
        self.step(told_of(one, two), lambda: file.append([*two[3:], *three[:2]]))
        self.step(told_of(one, two, three), lambda: file.append(three[2:]))
        self.step(told_of(one), lambda: file.keep_through(25))
        self.step(told_of(one), lambda: file.append([Agreed(PARTITION, NEWER, 60)]))
        other = snapshot(21, 33, by=2)
        self.step(told_of(one, other), lambda: file.append(other))
        self.step([], lambda: create(self.disk, random=b"2" * 16))
        self.step(None, lambda: load(self.disk).remove())


def survivor(disk):
    return told(load(disk)) if disk.exists(PATH) else None


FATES = [None, KEEP, LOSE, *range(6)]


@pytest.mark.parametrize("fate", FATES, ids=["dies", "keeps", "loses", *map(str, range(6))])
def test_a_crash_at_any_call_leaves_the_state_before_a_step_or_after_it(fate):
    """None: the process is killed. Else the power fails: numbers are seeds of what is left."""
    number, crashed = 0, True
    while crashed:
        disk = MemoryDisk()
        disk.make_directory(DATA)
        disk.torn_bytes = 37 * number % 500
        story, crashed = Story(disk), False
        disk.crash_at(number)
        try:
            story.run()
        except disk.Crashed:
            crashed = True
        if fate is None:
            disk.kill()
        else:
            disk.cut_power(random.Random(fate * 1_000 + number) if isinstance(fate, int) else fate)
        found = survivor(disk)
        assert found in (story.before, story.after), f"at call {number}"
        number += 1
    assert number > 25
    assert found is None
