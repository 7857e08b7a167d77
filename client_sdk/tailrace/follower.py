"""Keeps an index equal to a feed: ``async with feed.follow(index) as follower: ...``

Two tasks: one reads what arrives, up to the bounds of a transaction; the other applies it, on the index's own thread,
and of each key only the newest. So the slower the index, the more a transaction holds, and the fewer rows it writes.
"""

from __future__ import annotations

from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from tailrace.checkpoint import Checkpoint
from tailrace.consuming.partition import PartitionStatus
from tailrace.errors import StreamEnded, VersionLost
from tailrace.events import Mutations, Rollback
from tailrace.indexes import AppliedMutation, Index
from tailrace.lifetime import Lifetime
from tailrace.model import EndReason, Version
from tailrace.position import Position, Positions

if TYPE_CHECKING:
    from tailrace.feed import Feed

# A transaction: small enough to be short, large enough that its commit does not matter. 64 MiB bounds the memory.
APPLY_ROWS_MAX = 10_000
APPLY_BYTES_MAX = 64 * 1024 * 1024


class Follower:
    """See the module. Made by ``Feed.follow``; an index that fails ends the body with its exception."""

    def __init__(self, feed: Feed, index: Index, *, visibility: str = "disk") -> None:
        self._feed = feed
        self._index = index
        self._visibility = visibility
        self._thread = feed.host.worker(f"tailrace index of {feed.name}")
        self._lifetime = Lifetime()
        self._pending: list[Mutations | Rollback] = []
        self._pending_rows = self._pending_bytes = 0
        self._pending_positions: Positions | None = None
        self._arrived = trio.Event()
        self._taken = trio.Event()
        self._received = self._applied = 0  # events, to tell when a barrier's have been applied
        self._moved = trio.Event()
        self._ended = False
        self._positions: Positions | None = None
        self._applied_rows = 0
        self._transactions = 0

    async def __aenter__(self) -> Follower:
        """Opens the index, and resumes where it stands. Raises what the index raises, BadPosition, UnknownFeed, ..."""
        self._thread.start()
        try:
            checkpoint = await self._thread.run(self._index.open)
            since = "beginning" if checkpoint is None else checkpoint.positions
            self._stream = self._feed.consume(since, visibility=self._visibility)
            await self._stream.__aenter__()
        except BaseException:
            await self._close_index()
            raise
        self._positions = self._stream.positions if checkpoint is None else checkpoint.positions
        await self._lifetime.__aenter__()
        self._lifetime.start(self._read)
        self._lifetime.start(self._apply)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            return await self._lifetime.__aexit__(kind, error, traceback)
        finally:
            self._ended = True
            self._moved.set()
            try:
                await self._stream.__aexit__(None, None, None)
            finally:
                await self._close_index()

    async def _close_index(self) -> None:
        with trio.CancelScope(shield=True):
            await self._thread.run(self._index.close)
        self._thread.stop()

    # What users ask

    async def barrier(self) -> None:
        """Returns when the index holds everything that was acknowledged, at any level, before this call.

        Raises StreamEnded where the follower has ended.
        """
        await self._stream.barrier()
        await self._wait_applied(self._received)

    async def wait_for(self, version: Version) -> None:
        """Returns when the index has come to ``version``.

        Raises VersionLost where its history has been dropped, StreamEnded where the follower has ended.
        """
        while True:
            position = self.positions.get(version.partition)
            if position is not None and _is_lost(version, position):
                raise VersionLost(f"{version} is of a branch that has ended below it")
            if position is not None and position.seq >= version.seq:
                return
            await self._wait_moved()

    @property
    def positions(self) -> Positions:
        """Where the index stands."""
        assert self._positions is not None
        return self._positions

    @property
    def lag(self) -> dict[int, int]:
        """By how many seqs the index is behind what the follower has heard of, for each partition."""
        seqs = self.positions.seqs()
        return {s.partition: max(s.seq + s.lag - seqs.get(s.partition, 0), 0) for s in self._stream.status()}

    def status(self) -> list[PartitionStatus]:
        """The state of each partition's stream: how it is and why, when it is tried again, how far it is behind."""
        return self._stream.status()

    @property
    def applied_rows(self) -> int:
        """Rows written to the index since the body began, deletions included."""
        return self._applied_rows

    async def _wait_applied(self, count: int) -> None:
        while self._applied < count:
            await self._wait_moved()

    async def _wait_moved(self) -> None:
        failure = self._lifetime.failure
        if failure is not None:
            raise StreamEnded(f"the follower has ended: {failure}", reason=EndReason.ERROR)
        if self._ended:
            raise StreamEnded("the follower was closed", reason=EndReason.CLOSED)
        await self._moved.wait()

    # Reading and applying

    async def _read(self) -> None:
        async for event in self._stream:
            while self._pending_rows >= APPLY_ROWS_MAX or self._pending_bytes >= APPLY_BYTES_MAX:
                self._taken = trio.Event()
                await self._taken.wait()
            if isinstance(event, Mutations):
                self._pending_rows += len(event)
                self._pending_bytes += event.block.header.raw_bytes
                self._pending.append(event)
            elif isinstance(event, Rollback):
                self._pending.append(event)
            self._received += 1
            self._pending_positions = self._stream.latest_positions if not self._stream.has_event() else None
            if self._pending_positions is not None or self._is_full():
                self._pending_positions = self._stream.latest_positions
                self._arrived.set()

    def _is_full(self) -> bool:
        return self._pending_rows >= APPLY_ROWS_MAX or self._pending_bytes >= APPLY_BYTES_MAX

    async def _apply(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            if self._pending_positions is None:
                continue
            pending, positions, received = self._pending, self._pending_positions, self._received
            self._pending, self._pending_positions = [], None
            self._pending_rows = self._pending_bytes = 0
            self._taken.set()
            self._applied_rows += await self._thread.run(self._apply_all, pending, positions)
            self._transactions += 1
            self._positions = positions
            self._applied = received
            self._moved.set()
            self._moved = trio.Event()

    def _apply_all(self, pending: list[Mutations | Rollback], positions: Positions) -> int:
        """On the index's thread: one transaction, unless a rollback stands in the middle."""
        newest: dict[bytes, AppliedMutation] = {}
        pending.reverse()
        while pending:
            event = pending.pop()  # its columns are copies: what has been taken over is let go
            if isinstance(event, Rollback):
                newest = {key: row for key, row in newest.items() if row.partition != event.partition}
                self._index.clear(event.partition)
            else:
                keys = event.keys()
                rows = zip(repeat(event.partition), keys, event.values(), event.seqs(), event.timestamps())
                newest.update(zip(keys, map(AppliedMutation._make, rows), strict=True))
        self._index.apply(list(newest.values()), Checkpoint(positions))
        return len(newest)


def _is_lost(version: Version, position: Position) -> bool:
    """The history at ``position`` has no such version, and never will."""
    log, branch = position.log, version.branch
    diverged = position.seq >= version.seq and bool(log) and log.branch_at(version.seq) != branch
    return diverged or log.has_ended_below(branch, version.seq)
