"""Programs that consume the feed, and store their rows with a position. Each checks every event."""

from __future__ import annotations

import contextlib
import math

import trio
from tests.processes.violation import Violation

from tailrace import BadSegment, EndReason, Mutations, Positions, Retryable, Rollback, SnapshotEnd, StreamEnded
from tailrace.indexes import AppliedMutation

from .indexes import RINGS
from .process import PATIENT_S, Process


class ConsumingProcess(Process):
    """Consumes the feed. Now and then it stores its rows together with a position, as one string.

    A kill loses the rows since then, which are in memory. Each session draws how it handles rollbacks, and how many
    keys its ring keeps. A consumer with a filter asks for barriers, too.
    """

    def __init__(self, world, name, *, key_prefix=b"", keys_only=False):
        super().__init__(world, name)
        self._prefix = key_prefix
        self._keys_only = keys_only
        # Of a row that a crash has taken, neither the value nor the rows before it are known.
        self._visibility = "disk" if key_prefix else self.random.choice(("disk", "memory"))
        self._polls = world.random_of(f"polls of {name}")
        self._on_rollback = ""
        self._stored = None
        self._stored_rows = {}
        self._rows = {}  # key: AppliedMutation
        self._seqs = {}  # the seq of each partition up to which it has read
        self.positions = {}

    async def session(self):
        self._rows = dict(self._stored_rows)
        positions = None if self._stored is None else Positions.parse(self._stored)
        self._seqs = {} if positions is None else dict(positions.seqs())
        self._on_rollback = self.random.choice(("follow", "follow", "restart", "stop"))
        options = {
            "window_bytes": self.random.choice((1, 5_000, 8 * 1024 * 1024)),
            "on_rollback": self._on_rollback,
            "ring": self.random.choice(RINGS),
            "visibility": self._visibility,
            "key_prefix": self._prefix,
            "keys_only": self._keys_only,
        }
        started = False
        try:
            # The disk may refuse to read a segment three times in a row. That ends a stream, and not the program.
            with self.world.damage():
                async with self.connect(retry_for=PATIENT_S, connect_timeout=5.0) as client:
                    since = "beginning" if positions is None else positions
                    async with client.feed(self.world.feed_name).consume(since, **options) as stream:
                        started = True
                        await self._consume(stream)
        except Retryable:
            if started:
                raise
            await trio.sleep(0.1)
        except StreamEnded as error:
            self._stop(error)

    def _stop(self, error):
        """Drops the stored rows after a rollback that ends the stream, so that the next session begins anew."""
        if self._on_rollback != "stop" or error.reason is not EndReason.ROLLED_BACK:
            raise error
        self.world.report.operation("rollback of a consumer that stops", self.name)
        self._stored, self._stored_rows = None, {}

    async def _consume(self, stream):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end, nursery)
            if self._prefix:
                nursery.start_soon(self._ask_for_barriers, stream)
            try:
                # A violation ends the loop early: aclosing() ends the generator in this task, before it is collected.
                async with contextlib.aclosing(self._events(stream)) as events:
                    async for event in events:
                        self._handle(event, stream.latest_positions)
                        if self.random.random() < 0.2:
                            self._stored, self._stored_rows = str(stream.latest_positions), dict(self._rows)
            except StreamEnded as error:
                self._stop(error)
            nursery.cancel_scope.cancel()

    async def _events(self, stream):
        """Returns the events. Some programs poll: they wait for a moment, and look in again later."""
        seconds = self._polls.choice((math.inf, math.inf, 0.01, 0.3))
        while True:
            with trio.move_on_after(seconds) as scope:
                try:
                    event = await anext(stream)
                except StopAsyncIteration:
                    return
            if scope.cancelled_caught:
                await trio.sleep(self._polls.random() * 0.2)
            else:
                yield event

    async def _ask_for_barriers(self, stream):
        """Asks for barriers, and checks that it has all rows of its filter that were acknowledged before."""
        truth, report = self.world.checks.truth, self.world.report
        while True:
            await trio.sleep(self.random.random() * 4.0)
            floors = truth.floors()
            begun = report.barrier_begins(self.name)
            try:
                await stream.barrier()
            except (BadSegment, StreamEnded):
                return  # the task that reads the events gets the same error, and judges it
            report.barrier_ends(self.name, begun)
            for number, (floor, forks) in floors.items():
                left = truth.partitions[number].still(floor, forks)
                self._check_covers(number, left, self.positions, "after a barrier")

    async def _end(self, nursery):
        """Ends the session after a while, or with the run."""
        await self.pause(self.random.choice((0.5, 3.0, 20.0)))
        nursery.cancel_scope.cancel()

    def _handle(self, event, positions):
        if isinstance(event, Mutations):
            self._take(event)
        elif isinstance(event, Rollback):
            self._go_back(event)
        elif isinstance(event, SnapshotEnd):
            self._seqs[event.partition] = event.last_seq
            self._check_covers(event.partition, event.last_seq, positions, "at the end of a snapshot")
            self.world.report.at_snapshot_end(self.name, event.partition)
        self._check_position(positions)

    def _go_back(self, event):
        partition, seq, keys = event
        held = [key for key, row in self._rows.items() if row.partition == partition and row.seq > seq]
        if keys is None:
            self._rows = {key: row for key, row in self._rows.items() if row.partition != partition}
        elif self._on_rollback != "follow" or set(held) - set(keys):
            raise Violation(f"{self.name}, which would {self._on_rollback}, is told to read {keys} again, has {held}")
        how = "begins anew" if keys is None else "follows"
        self.world.checks.rolled_back(self.name, partition, f"to {seq}")
        self.world.report.operation(f"rollback of a consumer that {how}", f"{self.name} {partition} to {seq}")
        self._seqs[partition] = seq

    def _take(self, event):
        columns = zip(event.keys(), self._values(event), event.seqs(), event.timestamps(), strict=True)
        rows = [AppliedMutation(event.partition, *row) for row in columns]
        truth = self.world.checks.truth
        truth.check_rows(rows, may_be_lost=self._visibility == "memory")
        before = self._seqs.get(event.partition, 0)
        for row in rows:
            if not row.key.startswith(self._prefix):
                raise Violation(f"{self.name}: {row.key!r} was not asked for")
            is_next = row.seq > before
            if self.world.plan.retention == "history" and self._prefix:
                is_next &= not truth.left_out(event.partition, before, row.seq, self._prefix)
            elif self.world.plan.retention == "history":
                is_next = row.seq == before + 1
            if not is_next and not event.refetched:
                raise Violation(f"{self.name}: {event.partition}/{row.seq} comes after {before}")
            before = row.seq
            if row.value is None:
                self._rows.pop(row.key, None)
            else:
                self._rows[row.key] = row
        if event.refetched:
            self.world.has_read_again()
        else:
            self._seqs[event.partition] = event.last_seq
        self.world.report.operation("event", f"{self.name} {event.partition}/{event.last_seq}")

    def _values(self, event):
        """Returns the values of an event; without values, those that the rows have in truth."""
        if not self._keys_only:
            return event.values()
        if any(value is not None for value in event.values()):
            raise Violation(f"{self.name} was given values")
        rows = zip(event.seqs(), event.keys(), event.deleted(), strict=True)
        value_at = self.world.checks.truth.value_at
        return [None if deleted else value_at(event.partition, seq, key) for seq, key, deleted in rows]

    def _check_position(self, positions):
        self.positions = positions
        for partition, seq in positions.seqs().items():
            if seq > self._seqs.get(partition, 0):
                raise Violation(f"{self.name} is told to be at {partition}/{seq}, has come to {self._seqs}")

    def _check_covers(self, partition, seq, positions, when):
        truth = self.world.checks.truth
        position = positions.get(partition)
        if position is not None and position.log.branch != truth.history.branches[partition].log.branch:
            return  # a crash has taken the rows since
        truth.check_stands(partition, seq, f"{self.name} {when}")
        held = {key: (row.seq, row.value) for key, row in self._rows.items()}
        truth.check_covers(partition, seq, held, f"{self.name} {when}", self._prefix)
