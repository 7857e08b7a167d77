"""The committer in every order of what happens around it: whoever waits is told, without another event."""

from __future__ import annotations

import collections
import itertools

import pytest
import trio
from tests.fake_host import FakeClock

from tailrace_server.upkeep import committer as module
from tailrace_server.upkeep.committer import Committer

EVENTS = ("block", "record", "asked", "turn", "turn of another", "rotation", "fsync ends")
STEPS = 4


class Journal:
    """One in which time stands still: an fsync in a thread takes until ``end``."""

    is_next_due = False

    def __init__(self, clock, sync_seconds):
        self.written = self.synced = 0
        self.clock = clock
        self.sync_seconds = sync_seconds
        self.ends = None  # while an fsync is under way in a thread

    def sync(self):
        self.clock.advance(self.sync_seconds)
        self.synced = self.written

    async def in_own_thread(self, function):
        upto, self.ends = self.written, trio.Event()
        await self.ends.wait()
        self.ends = None
        written, self.written = self.written, upto  # it makes durable what was written when it began
        synced = self.synced
        try:
            return function()
        finally:
            self.written, self.synced = written, max(synced, self.synced)


class Partition:
    def __init__(self):
        self.high_seq = self.durable_seq = 0

    def durable_through(self, seq):
        assert self.durable_seq <= seq <= self.high_seq
        self.durable_seq = seq


class World:
    def __init__(self, sync_seconds, is_slow):
        clock = FakeClock()
        self.journal = Journal(clock, sync_seconds)
        self.committer = Committer(self.journal, clock, self.journal)
        self.committer.usual_sync_seconds = 1.0 if is_slow else 0.0
        self.partition = Partition()
        self.asked, self.told = [], []

    def do(self, event):
        committer, journal = self.committer, self.journal
        match event:
            case "block":
                journal.written += 10
                self.partition.high_seq += 1
                committer.note(self.partition)
            case "record":
                journal.written += 10
            case "asked":
                place = len(self.asked)
                self.asked.append((journal.written, self.partition.high_seq))
                committer.when_durable(lambda error: self.told.append((place, error, journal.synced)))
            case "turn" | "turn of another":
                committer.turn_ended(event)
            case "rotation":
                if journal.ends is None:  # it waits for an fsync that is under way
                    journal.synced = journal.written
            case "fsync ends":
                if journal.ends is not None:
                    journal.ends.set()

    async def settle(self):
        """Every fsync that begins comes to its end; nothing else happens."""
        with trio.move_on_after(10 * module.LAZY_SECONDS):
            while True:
                await trio.testing.wait_all_tasks_blocked()
                if self.journal.ends is None:
                    await trio.sleep(2 * module.LAZY_SECONDS)
                if self.journal.ends is not None:
                    self.journal.ends.set()

    def check(self):
        """Asked in order, told in order, and nothing before it was durable."""
        assert [place for place, _, _ in self.told] == list(range(len(self.told)))
        for place, error, synced in self.told:
            assert error is None
            assert synced >= self.asked[place][0]


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("sync_seconds", [0.0, 1.0])
async def test_whoever_waits_is_told_in_every_order_of_events(autojump_clock, sync_seconds, is_slow):
    """A turn ends after each event at last, as after each frame of a connection."""
    for events in itertools.product(EVENTS, repeat=STEPS):
        world = World(sync_seconds, is_slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.committer.run)
            for event in events:
                world.do(event)
                if event in ("block", "record", "asked"):
                    world.do("turn")
                await trio.testing.wait_all_tasks_blocked()
                world.check()
            await world.settle()
            nursery.cancel_scope.cancel()
        world.check()
        assert len(world.told) == len(world.asked), events
        assert world.partition.durable_seq == world.partition.high_seq, events


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize("sync_seconds", [0.0, 1.0])
async def test_a_writer_that_is_told_to_be_alone_has_its_fsync_at_once(autojump_clock, sync_seconds, is_slow):
    """So the disk does not begin to write rows that wait for those of others."""
    found = collections.Counter()
    for events in itertools.product(EVENTS, repeat=STEPS - 1):
        world = World(sync_seconds, is_slow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.committer.run)
            for event in events:
                world.do(event)
                await trio.testing.wait_all_tasks_blocked()
            is_alone = world.committer.is_alone("turn", world.committer._clock.monotonic())
            syncs = world.committer.syncs
            for event in ("block", "asked", "turn"):
                world.do(event)
            assert not is_alone or world.committer.syncs > syncs, events
            found[is_alone] += 1
            nursery.cancel_scope.cancel()
    assert found[False]
    assert is_slow or found[True]
