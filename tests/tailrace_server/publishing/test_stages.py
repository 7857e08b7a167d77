"""The stages of a node: what they take, what they refuse, and when they go."""

from __future__ import annotations

import errno

import pytest
from tests.fake_host import FakeClock
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.publishing.blocks import block

from tailrace.errors import BadBlock, NoSpace, Overloaded, TailraceError, UnknownStage
from tailrace.wire.stage_messages import StageSeal
from tailrace_server.publishing import stages as stages_module
from tailrace_server.publishing.eviction import AGE_S_MIN
from tailrace_server.publishing.kept_blocks import KEPT_S_MAX
from tailrace_server.publishing.stage_file import by_partition
from tailrace_server.publishing.stages import IDLE_S_MAX, Stages

FEED = b"f" * 16
ONE, TWO = b"1" * 16, b"2" * 16
SUFFIXES = (".open", ".stage", ".stage")


class Made:
    def __init__(self, disk=None, **bounds):
        self.disk = MemoryDisk() if disk is None else disk
        self.clock = FakeClock()
        self.disk.make_directory("/data")
        self.bounds = {"stages_max": 4, "bytes_max": 100_000, "kept_bytes_max": 10_000} | bounds
        self.start()

    def start(self):
        self.stages = Stages(
            self.disk, "/data", monotonic=self.clock.monotonic, wall_us=self.clock.wall_us, **self.bounds
        )
        self.stages.load()

    def take(self, number=0, acknowledged=0, id=ONE, feed=FEED, **what):
        return self.stages.take(feed, id, number, acknowledged, block(**what))

    def seal(self, blocks=1, rows=None, id=ONE, feed=FEED, checksum=None):
        stage = self.stages._open.get(id)
        found = (0 if stage is None else stage.sum.intdigest()) if checksum is None else checksum
        begun = self.stages.begin_seal(StageSeal(feed, id, blocks, 2 * blocks if rows is None else rows, found))
        if begun is not None:
            self.stages.sealed(begun, self.stages.directory.seal(begun))
        return begun

    @property
    def names(self):
        return self.disk.names("/data/staging")


@pytest.fixture
def made():
    return Made()


def test_blocks_in_order_and_again(made):
    assert made.take(0) == 1
    assert made.take(1, 1) == 2
    assert made.take(0) == 2
    with pytest.raises(Overloaded, match=r"block 3 of stage .* has to wait for block 2"):
        made.take(3)
    made.seal(2)
    index = made.stages.directory.read_index(ONE)
    assert [entry.partition for entry in index] == [0, 0]
    assert made.stages.directory.read_blocks(ONE, index) == [block(), block()]
    assert made.names == [ONE.hex() + ".stage"]


def test_what_was_acknowledged_has_to_be_there(made):
    with pytest.raises(UnknownStage, match="2 of its blocks were acknowledged"):
        made.take(2, 2)
    made.take(0)
    with pytest.raises(UnknownStage, match="has 1 blocks here, and 2 were acknowledged"):
        made.take(2, 2)
    with pytest.raises(UnknownStage):
        made.take(1, 1, feed=b"g" * 16)


def test_a_seal_needs_all_blocks_and_these(made):
    made.take(0)
    with pytest.raises(UnknownStage, match="has 1 of its 2 blocks here"):
        made.seal(2)
    with pytest.raises(BadBlock):
        made.seal(1, checksum=1)
    with pytest.raises(BadBlock):
        made.seal(1, rows=3)
    with pytest.raises(UnknownStage):
        made.seal(0, id=TWO)
    checksum = made.stages._open[ONE].sum.intdigest()
    assert made.seal(1) is not None
    assert made.seal(1, checksum=checksum) is None  # sent again
    with pytest.raises(BadBlock, match="sealed with other blocks"):
        made.seal(1, checksum=checksum + 1)
    with pytest.raises(UnknownStage, match="is sealed"):
        made.take(1)
    assert made.stages.missing(FEED, [ONE, TWO]) == [TWO]
    assert made.stages.missing(b"g" * 16, [ONE]) == [ONE]


def test_one_seal_at_a_time(made):
    made.take(0)
    stage = made.stages._open[ONE]
    message = StageSeal(FEED, ONE, 1, 2, stage.sum.intdigest())
    assert made.stages.begin_seal(message) is stage
    with pytest.raises(Overloaded, match="is being sealed"):
        made.stages.begin_seal(message)
    with pytest.raises(UnknownStage):
        made.take(1, 1)


def test_bounds(monkeypatch):
    made = Made(stages_max=2)
    made.take(0)
    made.seal()
    made.take(0, id=TWO)
    with pytest.raises(Overloaded, match="1 stages that are being written and 1 that are sealed"):
        made.take(0, id=b"3" * 16)
    monkeypatch.setattr(stages_module, "OPEN_MAX", 1)
    made = Made()
    made.take(0)
    with pytest.raises(Overloaded):
        made.take(0, id=TWO)
    made = Made(bytes_max=2 * block().nbytes)
    made.take(0)
    made.take(1)
    with pytest.raises(Overloaded, match="stages take"):
        made.take(2)
    assert made.take(1) == 2
    made.stages.forget([])
    assert made.stages.statistics() == (1, 0, 2 * block().nbytes)


def test_a_full_disk_is_told_and_may_be_tried_again(made):
    made.take(0)
    made.disk.fail("write_at", errno.ENOSPC)
    with pytest.raises(NoSpace):
        made.take(1)
    made.disk.fail("write_at", errno.EIO)
    with pytest.raises(TailraceError, match="cannot be written"):
        made.take(1)
    made.disk.before = None
    assert made.take(1) == 2
    made.seal(2)
    assert len(made.stages.directory.read_blocks(ONE, made.stages.directory.read_index(ONE))) == 2


def test_an_unsealed_stage_goes_on_after_a_start(made):
    for number in range(3):
        made.take(number, number)
    made.disk.kill()
    made.start()
    with pytest.raises(Overloaded, match="is being opened again"):
        made.take(3, 3)
    assert made.stages.take_left(ONE)
    assert not made.stages.take_left(ONE)
    made.stages.reopened(ONE, made.stages.directory.reopen(ONE))
    assert made.take(3, 3) == 4
    made.seal(4)
    assert len(made.stages.directory.read_index(ONE)) == 4


def test_what_a_crash_has_lost_of_it_is_missed(made):
    made.take(0)
    made.take(1, 1)
    inode = made.disk.names_now[f"/data/staging/{ONE.hex()}.open"]
    inode.sync()
    del inode.content.whole()[-1:]
    made.disk.kill()
    made.start()
    made.stages.reopened(ONE, made.stages.directory.reopen(ONE))
    with pytest.raises(UnknownStage, match="has 1 blocks here, and 2 were acknowledged"):
        made.take(2, 2)
    made.start()
    made.stages.reopened(TWO, made.stages.directory.reopen(TWO))
    with pytest.raises(UnknownStage):
        made.take(1, 1, id=TWO)


def test_they_go_when_they_are_published_or_old(made):
    for id in (ONE, TWO):
        made.take(0, id=id)
        made.seal(id=id)
        made.clock.advance(10)
    made.stages.directory.remove(made.stages.forget([ONE, b"3" * 16]))
    assert made.names == [TWO.hex() + ".stage"]
    sealed_us = made.clock.wall_us() - 10_000_000
    assert made.stages.expired(None) == []
    assert made.stages.expired(sealed_us - 1) == []
    made.stages.directory.remove(made.stages.expired(sealed_us))
    assert made.names == []
    assert made.stages.statistics() == (0, 0, 0)


def test_one_that_was_sealed_in_2100_is_as_old_as_the_node_has_seen(made):
    made.take(0)
    made.clock.jump(27_000 * 86_400)
    made.seal()
    made.clock.jump(-27_000 * 86_400)
    for _ in range(2):  # a restart counts anew
        seen_us = made.clock.wall_us()
        assert made.stages.expired(seen_us - 1) == []
        made.clock.advance(10)
        assert made.stages.expired(seen_us - 1) == []
        made.disk.kill()
        made.start()
    assert made.stages.expired(None) == []
    seen_us = made.clock.wall_us()
    made.clock.advance(10)
    made.stages.directory.remove(made.stages.expired(seen_us))
    assert made.names == []


def test_one_without_a_writer_goes(made):
    made.take(0)
    made.clock.advance(IDLE_S_MAX - 1)
    made.take(0, id=TWO)
    assert made.stages.expired(None) == []
    made.clock.advance(1)
    made.stages.directory.remove(made.stages.expired(None))
    assert made.names == [TWO.hex() + ".open"]
    made.disk.kill()
    made.start()
    made.clock.advance(IDLE_S_MAX)
    made.stages.directory.remove(made.stages.expired(None))
    assert made.names == []


def test_one_of_an_earlier_run_goes_by_its_own_age(made):
    """However often the node starts."""
    written_us = 1_700_000_000_000_000
    made.disk.changed_ns = lambda path: written_us * 1_000
    for id in (ONE, TWO):
        made.take(0, id=id)
    made.disk.kill()
    made.start()
    assert made.stages.take_left(TWO)
    assert made.stages.expired(None) == []
    assert made.stages.expired(written_us - 1) == []
    made.stages.directory.remove(made.stages.expired(written_us))
    assert made.names == [TWO.hex() + ".open"], "its writer is there"
    made.stages.reopened(TWO, made.stages.directory.reopen(TWO))
    assert made.stages.expired(written_us) == []
    assert made.stages.statistics() == (1, 0, block().nbytes)


@pytest.mark.parametrize("bounds", [{"bytes_max": 3 * block().nbytes}, {"stages_max": 2}])
def test_those_of_an_earlier_run_take_room_and_give_way(bounds):
    made = Made(**bounds)
    for id in (ONE, TWO):
        made.take(0, id=id)
    made.disk.kill()
    made.start()
    assert made.stages.statistics().bytes >= 2 * block().nbytes
    with pytest.raises(Overloaded, match=r"stages take|holds 2 stages"):
        made.take(0, id=b"3" * 16)
    made.clock.advance(AGE_S_MIN - 1)
    assert made.stages.expired(None) == []
    with pytest.raises(Overloaded):
        made.take(0, id=b"3" * 16)
    made.clock.advance(1)
    made.stages.directory.remove(made.stages.expired(None))
    assert made.names == [TWO.hex() + ".open"]
    assert made.take(0, id=b"3" * 16) == 1
    made.stages.reopened(TWO, made.stages.directory.reopen(TWO))
    assert made.stages.statistics() == (2, 0, 2 * block().nbytes)


def test_what_is_kept_is_what_the_file_has(made):
    made.take(0, partition=1, partitions=2)
    made.take(1, 1, value=b"other", partitions=2)
    kept = made.stages.kept.find(ONE)
    made.seal(2)
    index = made.stages.directory.read_index(ONE)
    assert {number: share.entries for number, share in kept.items()} == by_partition(index)
    for share in kept.values():
        assert made.stages.directory.read_blocks(ONE, share.entries) == share.blocks
    assert made.stages.kept.nbytes == sum(entry.nbytes for entry in index)


def test_nothing_is_kept_of_what_is_gone(made):
    made.take(0)
    made.take(0, id=TWO)
    made.take(0, id=b"3" * 16)
    made.seal()
    made.stages.forget([ONE])
    made.stages.lost(made.stages._open[TWO])
    assert made.stages.kept.nbytes == block().nbytes
    made.clock.advance(KEPT_S_MAX)
    made.stages.expired(None)
    assert made.stages.kept.nbytes == 0
    assert made.stages.statistics().open == 1


def test_a_stage_that_is_opened_again_is_not_kept(made):
    made.take(0)
    made.disk.kill()
    made.start()
    made.stages.reopened(ONE, made.stages.directory.reopen(ONE))
    made.take(1, 1)
    assert made.stages.kept.find(ONE) is None


def test_where_there_is_no_room_the_oldest_give_way(made):
    """Those of a job that fails again and again: others need not wait until they are a day old."""
    ids = [bytes([number]) * 16 for number in range(5)]
    for id in ids[:4]:
        made.take(0, id=id)
        if id != ids[1]:
            made.seal(id=id)
        made.clock.advance(10)
    made.clock.advance(AGE_S_MIN - 21)
    assert made.stages.expired(None) == [], "nobody has needed room"
    with pytest.raises(Overloaded, match="give way after 10 minutes"):
        made.take(0, id=ids[4])
    made.stages.directory.remove(made.stages.expired(None))
    assert made.names == sorted(id.hex() + suffix for id, suffix in zip(ids[1:4], SUFFIXES, strict=True))
    assert made.take(0, id=ids[4]) == 1
    assert made.stages.expired(None) == [], "there is room again"
    with pytest.raises(UnknownStage):
        made.seal(id=ids[0])
    made.clock.advance(AGE_S_MIN)
    with pytest.raises(Overloaded):
        made.take(0, id=b"x" * 16)
    paths = made.stages.expired(None)
    assert [path.rpartition("/")[2] for path in paths] == [ids[1].hex() + ".open"]
    assert made.stages.statistics().open == 1
