"""Segments that have come damaged to a client are checked: within bounds, and only the file decides."""

import pytest
import trio
import trio.testing
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.upkeep.conftest import Engine

from tailrace_server.serving.status import health_of
from tailrace_server.upkeep import damage_checks
from tailrace_server.upkeep.damage_checks import CHECK_BYTES_PER_SECOND, CHECKED_SECONDS, CHECKS_MAX


class Checked:
    """An engine whose checks run, and the bytes that they have read of each segment."""

    def __init__(self, engine, nursery, monkeypatch):
        self.engine = engine
        self.checks = engine.node.storage.damage_checks
        self.read = []
        read = damage_checks.FileSum.read

        def counted(file_sum, nbytes):
            found = read(file_sum, nbytes)
            self.read.append((file_sum._segment, found))
            return found

        monkeypatch.setattr(damage_checks.FileSum, "read", counted)
        nursery.start_soon(self.checks.run)

    async def segments(self, count=1):
        partition = self.engine.create()
        for number in range(count):
            self.engine.put(partition, (b"%d" % number, b"v"))
            await self.engine.flusher.flush(partition)
        return partition.chain.segments

    async def settled(self):
        """All checks have ended."""
        await until(lambda: not self.checks._waiting and self.checks._reading is None)

    def flip(self, segment):
        self.engine.disk.content(segment.path)[100] ^= 1

    @property
    def damages(self):
        return list(self.engine.node.storage.damages)


@pytest.fixture
def checked(autojump_clock, nursery, monkeypatch):
    engine = Engine()
    engine.clock._passing = trio.current_time
    return Checked(engine, nursery, monkeypatch)


async def test_a_damaged_segment_is_in_status_and_a_good_one_is_not(checked, autojump_clock):
    good, bad = await checked.segments(2)
    checked.flip(bad)
    assert health_of(checked.engine.node.services)["healthy"]
    checked.checks.reported([good, bad])
    await checked.settled()
    assert checked.damages == [bad.path]
    health = health_of(checked.engine.node.services)
    assert not health["healthy"]
    assert f"the segment {bad.path} is damaged" in health["failure"]


async def test_a_segment_is_read_once_in_a_while_however_often_it_is_reported(checked, autojump_clock):
    [segment] = await checked.segments()
    for _ in range(5):
        checked.checks.reported([segment, segment])
        await checked.settled()
    assert sum(nbytes for _, nbytes in checked.read) == segment.nbytes
    checked.engine.clock.advance(CHECKED_SECONDS)
    checked.flip(segment)
    checked.checks.reported([segment])
    await checked.settled()
    assert checked.damages == [segment.path]
    checked.read.clear()
    checked.engine.clock.advance(CHECKED_SECONDS)
    checked.checks.reported([segment])
    await checked.settled()
    assert not checked.read, "it is known to be damaged"


async def test_no_more_segments_than_the_bound_wait_or_are_read(checked, autojump_clock, monkeypatch):
    monkeypatch.setattr(damage_checks, "CHECKS_MAX", 3)
    assert CHECKS_MAX > 3
    segments = await checked.segments(5)
    checked.checks.reported(segments)
    assert len(checked.checks._waiting) == 3
    await checked.settled()
    checked.checks.reported(segments)
    await checked.settled()
    assert {segment for segment, _ in checked.read} == set(segments[:3])
    checked.engine.clock.advance(CHECKED_SECONDS)
    checked.checks.reported(segments[3:])
    await checked.settled()
    assert {segment for segment, _ in checked.read} == set(segments)


async def test_a_check_leaves_the_disk_to_others(checked, autojump_clock, monkeypatch):
    monkeypatch.setattr(damage_checks, "READ_BYTES", 1_000)
    monkeypatch.setattr(damage_checks, "CHECK_BYTES_PER_SECOND", 100)
    assert CHECK_BYTES_PER_SECOND > 100
    [segment] = await checked.segments()
    began_at = trio.current_time()
    checked.checks.reported([segment])
    await checked.settled()
    assert trio.current_time() - began_at >= segment.nbytes / 100


async def test_a_segment_that_is_replaced_is_not_kept_for_a_check(checked, autojump_clock, monkeypatch):
    monkeypatch.setattr(damage_checks, "READ_BYTES", 1_000)
    monkeypatch.setattr(damage_checks, "CHECK_BYTES_PER_SECOND", 100)
    segments = await checked.segments(4)
    partition, storage = checked.engine.partition(), checked.engine.node.storage
    checked.checks.reported(segments)
    await trio.testing.wait_all_tasks_blocked()
    assert await storage.compactor.compact(partition, checked.engine.node.feeds.named("orders").info)
    await checked.settled()
    await checked.engine.flusher.trim()
    assert checked.engine.segments(partition) == [f"{partition.chain.segments[0].identity.segment_id.hex()}.seg"]
    assert sum(nbytes for _, nbytes in checked.read) < sum(segment.nbytes for segment in segments) / 2
    checked.read.clear()
    checked.checks.reported(segments)
    await checked.settled()
    assert not checked.read


async def test_a_feed_that_is_dropped_does_not_wait_for_checks(checked, autojump_clock, monkeypatch):
    monkeypatch.setattr(damage_checks, "READ_BYTES", 1_000)
    monkeypatch.setattr(damage_checks, "CHECK_BYTES_PER_SECOND", 100)
    checked.checks.reported(await checked.segments(3))
    await trio.testing.wait_all_tasks_blocked()
    assert len(checked.read) == 1
    checked.engine.create("other")
    checked.engine.drop()
    checked.engine.drop("other")  # has nothing to do with the segment that is being read
    assert not checked.checks._waiting
    await checked.settled()
    assert len(checked.read) == 1
    checked.engine.sync()
    await checked.engine.flusher.trim()
    assert checked.engine.feed_directories() == []


async def test_a_disk_without_a_free_descriptor_is_no_damage(checked, autojump_clock):
    [segment] = await checked.segments()
    checked.engine.node.storage.store.segment_files.close_idle()
    checked.engine.fail("open", ".seg", 24)
    checked.checks.reported([segment])
    await checked.settled()
    assert not checked.damages
