"""Streams that end at a time, on a virtual clock: a partition without a journal, and no sockets."""

import math

import pytest
import trio
import trio.testing
from tests.tailrace_server.stored import StoredPartition

from tailrace.errors import NotLeader
from tailrace.model import EndReason, Level
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.stream_messages import StreamEnd
from tailrace_server.replication.role import Role
from tailrace_server.serving.deadline_timer import DeadlineTimer
from tailrace_server.stream.deadlines import ENDS_MAX
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.rounds import Rounds


class VirtualClock:
    """A wall clock that goes with trio's, ``ahead_us`` before it."""

    ahead_us = 0

    def wall_us(self):
        return math.floor(trio.current_time() * 1e6) + self.ahead_us


class FakeConnection:
    """A connection and its node, as far as streams that end at a time need them."""

    role = Role.LEADER

    def __init__(self, nursery):
        self.nursery = nursery
        self.rounds = Rounds(1 << 30)
        self.node = self.leaderships = self.storage = self.connections = self.committer = self
        self.clock = VirtualClock()
        self.deadline_timer = DeadlineTimer(self)
        self.hurried = self.turns = 0
        self.begun_us = self.clock.wall_us()

    def of_partitions(self, partitions):
        return [self]

    def changes(self):
        return {0: self.role}

    def hurry(self):
        self.hurried += 1

    def has_news(self):
        pass

    def turn_ended(self):
        self.turns += 1

    def open(self, id, partition, seconds, level=Level.DISK):
        until_us = self.begun_us + round(seconds * 1e6)
        stream = PartitionStream(id, partition, level, 0, None, 0, pins=partition.pins, until_us=until_us)
        self.rounds.open(stream, lambda: None)
        self.deadline_timer.check()
        return stream


def on_virtual_time(work):
    async def main():
        async with trio.open_nursery() as nursery:
            await work(FakeConnection(nursery))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.slow
def test_each_ends_at_its_time():
    async def work(connection):
        for id, seconds in ((1, 3600.0), (2, 60.0), (3, 60.5)):
            connection.open(id, StoredPartition(id), seconds)
        begun = trio.current_time()
        ended = {}
        while connection.rounds.slots:
            before = set(connection.rounds.slots)
            await trio.sleep(0.25)
            ended |= dict.fromkeys(before - set(connection.rounds.slots), trio.current_time() - begun)
        assert ended == pytest.approx({2: 60.0, 3: 60.5, 1: 3600.0}, abs=0.26)
        assert connection.turns == 3, "nothing was done in between"

    on_virtual_time(work)


def test_many_end_a_few_at_a_time():
    async def work(connection):
        for id in range(1, 2 * ENDS_MAX + 2):
            connection.open(id, StoredPartition(0), 5)
        await trio.sleep(6)
        assert not connection.rounds.slots
        assert connection.turns == 3

    on_virtual_time(work)


def test_a_follower_waits_for_what_its_leader_has_written_before():
    async def work(connection):
        connection.role, asked = Role.FOLLOWER, []
        partition = StoredPartition()

        async def leaders_seqs(partitions):
            asked.append(partitions)
            if len(asked) == 1:
                raise NotLeader("nobody leads")
            return lambda feed_id, partition: 1

        connection.leaders_seqs = leaders_seqs
        stream = connection.open(1, partition, 5, Level.MEMORY)
        await trio.sleep(5.5)
        assert stream.awaits_time
        await trio.sleep(1)
        assert (stream.awaits_time, list(connection.rounds.slots)) == (False, [1])
        assert asked == [[partition]] * 2
        for value in (b"before", b"too late"):
            partition.put((b"k", value))
        while connection.rounds.next_buffers(1 << 20):
            pass
        assert not connection.rounds.slots
        assert stream.delivered_seq == 1

    on_virtual_time(work)


def test_what_was_taken_before_is_sent_first():
    async def work(connection):
        partition = StoredPartition()
        partition.put((b"k", b"v"))
        stream = connection.open(1, partition, 5)
        await trio.sleep(6)
        assert stream.id in connection.rounds.slots, "it is not durable yet"
        assert connection.hurried == 1
        partition.put((b"k", b"too late"))
        partition.sync()
        while connection.rounds.next_buffers(1 << 20):
            pass
        assert not connection.rounds.slots
        assert stream.delivered_seq == 1

    on_virtual_time(work)


def test_a_clock_that_is_set():
    async def work(connection):
        connection.open(1, StoredPartition(), 100)
        connection.clock.ahead_us = -50_000_000
        await trio.sleep(101)
        assert connection.rounds.slots, "it is set back: it takes longer"
        await trio.sleep(50)
        assert not connection.rounds.slots
        connection.open(2, StoredPartition(), 1_000)
        await trio.sleep(1)
        connection.clock.ahead_us = 1_000_000_000
        connection.deadline_timer.check()
        await trio.sleep(0.001)
        assert not connection.rounds.slots, "it is set ahead: that is found at the next look"

    on_virtual_time(work)


def test_a_stream_that_is_closed_is_waited_for_no_more():
    async def work(connection):
        connection.open(1, StoredPartition(), 100)
        connection.rounds.close_all()
        assert connection.rounds.deadlines.next_us is None
        connection.open(2, StoredPartition(), 50)
        await trio.sleep(51)
        assert not connection.rounds.slots

    on_virtual_time(work)


def test_a_row_that_is_too_late_ends_it_and_covers_its_barriers():
    partition, rounds = StoredPartition(), Rounds(1 << 30)
    for timestamp in (10, 20, 30, 40):
        partition.put((b"k", b"v"), timestamp=timestamp)
    partition.sync()
    rounds.open(PartitionStream(1, partition, Level.DISK, 0, None, 0, pins=partition.pins, until_us=30), lambda: None)
    rounds.barriers.add(b"cookie")
    data = b"".join(rounds.next_buffers(1 << 20))
    frames = FrameDecoder().receive_data(data)
    names = [frame.opcode.name for frame in frames]
    assert names == ["SNAPSHOT_START", "BLOCK", "BLOCK", "BLOCK", "STREAM_END", "BARRIER_REACHED", "ROUND_COMPLETE"]
    assert StreamEnd.decode(frames[4].body).reason is EndReason.END_REACHED
    assert (rounds.slots, rounds.deadlines.next_us) == ({}, None)


def test_a_full_window_does_not_keep_it_from_ending():
    partition, rounds = StoredPartition(), Rounds(1)
    partition.put((b"k", b"v"), timestamp=30)
    partition.put((b"k", b"v"), timestamp=40)
    partition.sync()
    rounds.open(PartitionStream(1, partition, Level.DISK, 0, None, 0, pins=partition.pins, until_us=25), lambda: None)
    while rounds.next_buffers(1 << 20):
        pass
    assert not rounds.slots


def test_streams_of_one_time_are_told_apart_by_it():
    """So that closing thousands of them is no search through all, each time."""
    partition, rounds = StoredPartition(), Rounds(1 << 30)
    for id in range(1, 101):
        rounds.open(
            PartitionStream(id, partition, Level.DISK, 0, None, 0, pins=partition.pins, until_us=9), lambda: None
        )
    keys = [(9, slot.key) for slot in rounds.slots.values()]
    assert [rounds.deadlines._slots.bisect_key_left(key) for key in keys] == list(range(100))
    for id in range(100, 0, -1):
        assert rounds.deadlines.next_us == 9
        rounds.close(id, EndReason.CLOSED)
    assert rounds.deadlines.next_us is None
