"""Who reads: followers with their indexes, consumers, and those who ask for keys. Each checks all that it gets."""

from __future__ import annotations

import contextlib

import trio
from tests.model.history import Violation
from tests.model.readers import Looker

from tailrace import Mutations, Positions, Retryable, Rollback, SnapshotEnd, StreamEnded
from tailrace.indexes import AppliedMutation, MemoryIndex

from .process import FEED, PATIENT_S, Process


class CheckedIndex(MemoryIndex):
    """Holds what it is given against what the node has really done, each time."""

    def __init__(self, world, name, visibility):
        super().__init__()
        self._world = world
        self._name = name
        self._may_be_lost = visibility == "memory"
        self.applied_rows = 0

    def apply(self, mutations, checkpoint):
        truth = self._world.truth
        self.applied_rows += len(mutations)
        truth.check_rows(mutations, may_be_lost=self._may_be_lost)
        super().apply(mutations, checkpoint)
        self._world.report.operation("apply", f"{self._name} {len(mutations)}")
        for number in {mutation.partition: None for mutation in mutations}:
            self._check_position(number, checkpoint.positions.get(number))

    def _check_position(self, number, position):
        """It is not ahead of what was delivered."""
        truth = self._world.truth
        if position is None or position.log.branch != truth.history.branches[number].log.branch:
            return  # that history has ended; the follower has not heard of it yet
        if position.seq > len(truth.partitions[number].rows):
            raise Violation(f"{self._name} is at {number}/{position.seq}, where nobody has been")
        # Inside of a snapshot what is superseded further up in it may be missing.
        floor = position.seq if position.seq >= position.snapshot_last else position.snapshot_first
        self.check_covers(number, floor, f"{self._name} at its position")

    def check_covers(self, number, floor, what):
        self._world.truth.check_covers(number, floor, self.state, self.versions, what)

    def rollback(self, partition, seq):
        self._world.report.operation("rollback", f"{self._name} {partition} to {seq}")
        super().rollback(partition, seq)

    def clear(self, partition):
        self._world.report.operation("rollback", f"{self._name} {partition}")
        super().clear(partition)


class FollowingProcess(Process):
    """Follows the feed into an index, which outlives it, and asks for barriers."""

    def __init__(self, world, name, visibility="disk"):
        super().__init__(world, name)
        self.index = CheckedIndex(world, name, visibility)
        self.visibility = visibility
        self.follower = None
        self.started = trio.Event()
        self.until = world.may_end

    async def session(self):
        try:
            async with contextlib.AsyncExitStack() as stack:
                client = await stack.enter_async_context(self.connect(retry_for=PATIENT_S, connect_timeout=5.0))
                following = client.feed(FEED).follow(self.index, visibility=self.visibility)
                async with following as self.follower:
                    self.started.set()
                    await self._ask_for_barriers()
        except Retryable:
            if self.follower is not None:
                raise
            await trio.sleep(0.1)  # nobody was there at the start
        finally:
            self.follower = None
            self.started = trio.Event()

    async def _ask_for_barriers(self):
        while not self.world.is_over.is_set():
            await self.pause(self.random.random() * 4.0)
            async with trio.open_nursery() as nursery:
                for _ in range(self.random.choice((1, 1, 3))):
                    nursery.start_soon(self.barrier)
        await self.world.may_end.wait()

    async def barrier(self):
        """A barrier, and whether the index has all that was acknowledged before it was asked for."""
        await trio.sleep(self.random.random() * 0.01)
        truth, report = self.world.truth, self.world.report
        floors = truth.floors()
        begun = report.barrier_begins(self.name)
        try:
            await self.follower.barrier()
        except StreamEnded as error:
            raise Violation(f"{self.name}: {error}") from error
        report.barrier_ends(self.name, begun)
        for number, (floor, forks) in floors.items():
            left = truth.partitions[number].still(floor, forks)
            self.index.check_covers(number, left, f"{self.name} after a barrier")


class ConsumingProcess(Process):
    """A program that consumes the feed and stores its rows together with a position, now and then, as one string.

    What it had in memory since then is lost when it is killed. One that asks for less than everything
    asks for barriers too.
    """

    def __init__(self, world, name, *, key_prefix=b"", keys_only=False):
        super().__init__(world, name)
        self._prefix = key_prefix
        self._keys_only = keys_only
        self._stored = None
        self._stored_rows = {}
        self._rows = {}  # key: (partition, seq, value)
        self._seqs = {}  # where it is in each partition

    async def session(self):
        self._rows = dict(self._stored_rows)
        positions = None if self._stored is None else Positions.parse(self._stored)
        self._seqs = {} if positions is None else dict(positions.seqs())
        started = False
        try:
            async with self.connect(retry_for=PATIENT_S, connect_timeout=5.0) as client:
                window_bytes = self.random.choice((1, 5_000, 8 * 1024 * 1024))
                since = "beginning" if positions is None else positions
                consuming = client.feed(FEED).consume(
                    since, window_bytes=window_bytes, key_prefix=self._prefix, keys_only=self._keys_only
                )
                async with consuming as stream:
                    started = True
                    await self._consume(stream)
        except Retryable:
            if started:
                raise
            await trio.sleep(0.1)

    async def _consume(self, stream):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end, nursery)
            if self._prefix:
                nursery.start_soon(self._ask_for_barriers, stream)
            async for event in stream:
                self._handle(event)
                self._check_position(stream.latest_positions)
                if self.random.random() < 0.2:
                    self._stored, self._stored_rows = str(stream.latest_positions), dict(self._rows)

    async def _ask_for_barriers(self, stream):
        """Barriers, and whether it has all that it asked for of what was acknowledged before."""
        truth, report = self.world.truth, self.world.report
        while True:
            await trio.sleep(self.random.random() * 4.0)
            floors = truth.floors()
            begun = report.barrier_begins(self.name)
            await stream.barrier()
            report.barrier_ends(self.name, begun)
            for number, (floor, forks) in floors.items():
                left = truth.partitions[number].still(floor, forks)
                self._check_covers(number, left, "after a barrier")

    async def _end(self, nursery):
        """A session ends after a while, and with the run."""
        await self.pause(self.random.choice((0.5, 3.0, 20.0)))
        nursery.cancel_scope.cancel()

    def _handle(self, event):
        if isinstance(event, Mutations):
            self._take(event)
        elif isinstance(event, Rollback):
            if event.keys is None:
                self._rows = {key: row for key, row in self._rows.items() if row.partition != event.partition}
            self._seqs[event.partition] = event.seq
        elif isinstance(event, SnapshotEnd):
            self._seqs[event.partition] = event.last_seq
            self._check_covers(event.partition, event.last_seq, "at the end of a snapshot")

    def _take(self, event):
        columns = zip(event.keys(), self._values(event), event.seqs(), event.timestamps(), strict=True)
        rows = [AppliedMutation(event.partition, *row) for row in columns]
        truth = self.world.truth
        truth.check_rows(rows, may_be_lost=False)
        before = self._seqs.get(event.partition, 0)
        for row in rows:
            if not row.key.startswith(self._prefix):
                raise Violation(f"{self.name}: {row.key!r} was not asked for")
            is_next = row.seq > before
            if self.world.retention == "history" and is_next:
                is_next = not truth.left_out(event.partition, before, row.seq, self._prefix)
            if not is_next and not event.refetched:
                raise Violation(f"{self.name}: {event.partition}/{row.seq} comes after {before}")
            before = row.seq
            if row.value is None:
                self._rows.pop(row.key, None)
            else:
                self._rows[row.key] = row
        if not event.refetched:
            self._seqs[event.partition] = event.last_seq
        self.world.report.operation("event", f"{self.name} {event.partition}/{event.last_seq}")

    def _values(self, event):
        """The values; where none were asked for those that the rows have."""
        if not self._keys_only:
            return event.values()
        if any(value is not None for value in event.values()):
            raise Violation(f"{self.name} was given values")
        rows = zip(event.seqs(), event.keys(), event.deleted(), strict=True)
        value_at = self.world.truth.value_at
        return [None if deleted else value_at(event.partition, seq, key) for seq, key, deleted in rows]

    def _check_position(self, positions):
        for partition, seq in positions.seqs().items():
            if seq > self._seqs.get(partition, 0):
                raise Violation(f"{self.name} is told to be at {partition}/{seq}, has come to {self._seqs}")

    def _check_covers(self, partition, seq, when):
        values = {key: row.value for key, row in self._rows.items()}
        what = f"{self.name} {when}"
        self.world.truth.check_covers(partition, seq, values, self._rows, what, self._prefix)


class LookingProcess(Process):
    """Asks for keys, one, many and all of them: each answer is what was there at some moment since it was asked."""

    async def session(self):
        looker = Looker(self.world.truth.history, self.random, self.world.keys, ["disk"])
        with contextlib.suppress(Retryable), self.world.damage():
            async with self.connect(retry_for=self.random.choice((0.3, PATIENT_S)), connect_timeout=5.0) as client:
                feed = client.feed(FEED)
                while not self.world.is_over.is_set():
                    if self.random.random() < 0.1:
                        await looker.look_at_items(feed)
                        self.world.report.operation("items")
                    else:
                        await looker.look_at(feed, self.random.sample(self.world.keys, self.random.choice((1, 1, 20))))
                        self.world.report.operation("get")
                    await self.pause(self.random.random())
            return
        await trio.sleep(0.1)
