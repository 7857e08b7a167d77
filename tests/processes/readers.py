"""Consumers, followers and look-ups: each compares new answers with earlier ones, and tells the history."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

import trio

from tailrace import Mutations, Positions, Rollback, SnapshotEnd
from tailrace.errors import StreamEnded, VersionLost
from tailrace.indexes import MemoryIndex, SQLiteIndex

from .history import Row
from .violation import Violation

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import tailrace
    from tailrace.indexes import Index

    from .history import History

# A snapshot of the index, which is compared with the whole history, follows one barrier of this number.
BARRIERS_PER_SNAPSHOT = 4


class Consumer:
    """An application that consumes the feed, loses its memory now and then, and resumes from its stored state.

    Args:
        name: A name for errors.
        history: Is told of the rows, if they last.
        rnd: Decides when it stores, and how much it asks for.
        atomic: It stores its rows together with the position behind them. Else it stores rows at once and positions
            now and then: the rows in between come again after a resume, and have to be the same.
        level: The level of its streams.
        lasting: Rows of this level last.
        may_roll_back: The nodes may lose rows of this level.
    """

    def __init__(
        self,
        name: str,
        history: History,
        rnd: random.Random,
        *,
        atomic: bool,
        level: str = "disk",
        lasting: bool = True,
        may_roll_back: bool = False,
    ) -> None:
        self.name = name
        self.rows: dict[int, list[tuple[Row, bytes]]] = {partition: [] for partition in range(history.partitions)}
        self.sessions = self.barriers = self.rollbacks = 0
        self._history = history
        self._random = rnd
        self._atomic = atomic
        self._level = level
        self._lasting = lasting
        self._may_roll_back = may_roll_back
        self._stored: str | None = None
        self._next = dict.fromkeys(self.rows, 1)  # the seq that has to come next
        self._stored_next = dict(self._next)
        self._covered = trio.Event()
        self._given = trio.Event()

    async def next_event(self) -> None:
        """Waits for its next event."""
        self._given = trio.Event()
        await self._given.wait()

    async def session(self, feed: tailrace.Feed, events: int | None, until: Callable[[], Awaitable[None]]) -> None:
        """Consumes this number of events (None: no bound), or until ``until`` returns, from the stored position on."""
        self.sessions += 1
        since = "beginning" if self._stored is None else Positions.parse(self._stored)
        self._remember()
        window_bytes = self._random.choice([1, 50_000, 8 * 1024 * 1024])
        stream = feed.consume(since, visibility=self._level, window_bytes=window_bytes)
        async with stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_asking, stream)
            nursery.start_soon(_cancel_after, until, nursery)
            async for event in stream:
                self._handle(event, stream)
                events = None if events is None else events - 1
                if events == 0:
                    break
            nursery.cancel_scope.cancel()

    def _remember(self) -> None:
        """Forgets everything that was not stored, as a new process of the application."""
        self._next = dict(self._stored_next)
        if self._atomic:
            for partition, rows in self.rows.items():
                del rows[self._next[partition] - 1 :]

    def _handle(self, event: object, stream: tailrace.Stream) -> None:
        self._given.set()
        if self._random.random() < 0.2 and not self._atomic:
            self._store(stream.positions)
        if isinstance(event, Mutations) and event.refetched:
            pass  # values from later rows; this consumer takes every row, and gets them again as rows
        elif isinstance(event, Mutations):
            for mutation in event:
                row = Row(mutation.key, mutation.value, mutation.timestamp)
                self._take(event.partition, mutation.seq, row, event.branch)
        elif isinstance(event, Rollback):
            if not self._may_roll_back:
                raise Violation(f"{self.name}: nothing was lost, and it gets {event}")
            self.rollbacks += 1
            del self.rows[event.partition][event.seq :]
            self._next[event.partition] = event.seq + 1
            self._store(stream.latest_positions)
        elif isinstance(event, SnapshotEnd) and event.last_seq != self._next[event.partition] - 1:
            raise Violation(f"{self.name}: {event} after seq {self._next[event.partition] - 1}")
        if self._random.random() < 0.2 and self._atomic:
            self._store(stream.latest_positions)

    def _take(self, partition: int, seq: int, row: Row, branch: bytes) -> None:
        if seq != self._next[partition]:
            raise Violation(f"{self.name}: seq {seq} of partition {partition}, expected {self._next[partition]}")
        self._next[partition] += 1
        rows = self.rows[partition]
        if seq > len(rows):
            rows.append((row, branch))
        elif rows[seq - 1][0] != row:
            raise Violation(f"{self.name}: {partition}/{seq} was {rows[seq - 1][0]} and now is {row}")
        if self._lasting:
            self._history.observe(partition, seq, row, branch)

    def _store(self, positions: Positions) -> None:
        for partition, position in positions.items():
            # A history keeps every row, so there is a row at each position.
            if position.seq != self._next[partition] - 1:
                raise Violation(
                    f"{self.name}: is told to be at {position.seq}, has come to {self._next[partition] - 1}"
                )
        self._stored = str(positions)
        self._stored_next = dict(self._next)

    async def _keep_asking(self, stream: tailrace.Stream) -> None:
        while True:
            await self.barrier(stream)
            await self._history.more_answers(self._random.randrange(1, 60))

    async def barrier(self, stream: tailrace.Stream) -> None:
        """Asks for a barrier, and checks that it covers everything that clients were told before."""
        floors = dict(self._history.floors)
        await stream.barrier()
        self.barriers += 1
        for partition, floor in floors.items():
            if self._next[partition] <= floor:
                raise Violation(
                    f"{self.name}: a barrier came back with partition {partition} at {self._next[partition] - 1}, and "
                    f"{floor} was acknowledged before it was asked for"
                )
        self._covered.set()

    async def catch_up(self, feed: tailrace.Feed) -> None:
        """Does a last session, until a barrier returns."""
        self._covered = trio.Event()
        await self.session(feed, None, self._covered.wait)


async def _cancel_after(until: Callable[[], Awaitable[None]], nursery: trio.Nursery) -> None:
    await until()
    nursery.cancel_scope.cancel()


class FirmMemoryIndex(MemoryIndex):
    """An index that is never told to forget a partition."""

    def clear(self, partition: int) -> None:
        raise Violation(f"a MemoryIndex is told to forget partition {partition}")


class FirmSQLiteIndex(SQLiteIndex):
    """An index that is never told to forget a partition."""

    def clear(self, partition: int) -> None:
        raise Violation(f"an SQLiteIndex is told to forget partition {partition}")


class FollowedIndex:
    """An index that a feed is followed into; it outlives the follower.

    Args:
        name: A name for errors.
        history: Is told of snapshots of the index, if they last.
        rnd: Decides how many barriers a session has.
        path: The SQLite file of the index; None for an index in memory.
        visibility: The level of the follower.
        lasting: Rows of this level last, so that the index is never told to forget a partition.
    """

    def __init__(
        self,
        name: str,
        history: History,
        rnd: random.Random,
        path: Path | None = None,
        *,
        visibility: str = "disk",
        lasting: bool = True,
    ) -> None:
        self.name = name
        self.sessions = self.barriers = 0
        self._history = history
        self._random = rnd
        self._path = path
        self._visibility = visibility
        self._lasting = lasting
        self._memory = FirmMemoryIndex() if lasting else MemoryIndex()

    def _index(self) -> Index:
        if self._path is None:
            return self._memory
        return FirmSQLiteIndex(self._path) if self._lasting else SQLiteIndex(self._path)

    async def session(self, feed: tailrace.Feed, until: Callable[[], Awaitable[None]]) -> None:
        """Follows for some barriers, or until ``until`` returns."""
        self.sessions += 1
        following = feed.follow(self._index(), visibility=self._visibility)
        async with following as follower, trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_after, until, nursery)
            for _ in range(self._random.randrange(1, 8)):
                await self.barrier(follower)
                await self.wait_for_last(follower)
                await self._history.more_answers(self._random.randrange(1, 40))
            nursery.cancel_scope.cancel()

    async def barrier(self, follower: tailrace.Follower) -> None:
        """Asks for a barrier, and checks that the index has everything that clients were told before."""
        floors = dict(self._history.floors)
        try:
            await follower.barrier()
        except StreamEnded as error:  # its cause may be a violation that the index has found
            raise Violation(f"{self.name}: {error}") from error
        self.barriers += 1
        for partition, seq in follower.positions.seqs().items():
            if seq < floors[partition]:
                raise Violation(f"{self.name}: a barrier came back at {partition}/{seq}, not {floors[partition]}")
        if self._lasting and not self.barriers % BARRIERS_PER_SNAPSHOT:
            values, at = self.contents()
            self._history.look_at_state(floors, values, self.name, at)

    async def wait_for_last(self, follower: tailrace.Follower) -> None:
        """Waits until the index has the last write that was acknowledged."""
        version = self._history.last_version
        if version is not None:
            try:
                await follower.wait_for(version)
            except VersionLost as error:
                raise Violation(f"{self.name}: {error}") from error
            seq = follower.positions[version.partition].seq
            if seq < version.seq:
                raise Violation(f"{self.name}: is said to have come to {version}, and is at {seq}")

    async def catch_up(self, feed: tailrace.Feed) -> dict[bytes, bytes]:
        """Returns the keys and values of the index after a barrier."""
        async with feed.follow(self._index(), visibility=self._visibility) as follower:
            await self.barrier(follower)
        return self.contents()[0]

    def contents(self) -> tuple[dict[bytes, bytes], dict[int, int] | None]:
        """Returns keys and values, and the seqs that they are known to be at."""
        if self._path is None:
            return self._memory.snapshot(), None
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute("BEGIN")
            values = dict(connection.execute("SELECT key, value FROM items"))
            at = dict(connection.execute("SELECT partition, seq FROM tailrace_checkpoint"))
        return values, at


class Looker:
    """Asks for single keys, for several, and for all; at ``levels`` that last."""

    def __init__(self, history: History, rnd: random.Random, keys: list[bytes], levels: list[str]) -> None:
        self._levels = levels
        self._history = history
        self._random = rnd
        self._keys = keys
        self.looks = self.lists = 0

    async def step(self, feed: tailrace.Feed) -> None:
        """Does one look, and waits for some answers to writers."""
        if self._random.random() < 0.03:
            await self.look_at_items(feed)
        else:
            await self.look_at_some(feed)
        await self._history.more_answers(self._random.randrange(1, 20))

    async def look_at_some(self, feed: tailrace.Feed) -> None:
        """Asks for one key or for several."""
        await self.look_at(feed, self._random.sample(self._keys, self._random.choice([1, 1, 1, len(self._keys) // 10])))

    async def look_at(self, feed: tailrace.Feed, keys: list[bytes]) -> None:
        floors = dict(self._history.floors)
        level = self._random.choice(self._levels)
        items = await feed.get_many(keys, level=level)
        self.looks += 1
        for key, item in zip(keys, items, strict=True):
            if item is not None and item.key != key:
                raise Violation(f"asked for {key!r}, got {item}")
            version, value = (None, None) if item is None else (item.version, item.value)
            self._history.look(key, floors[self._history.partition_of(key)], version, value, f"a get at level {level}")

    async def look_at_items(self, feed: tailrace.Feed) -> dict[bytes, bytes]:
        floors = dict(self._history.floors)
        items = [item async for item in feed.items()]
        self.lists += 1
        values = {item.key: item.value for item in items}
        if len(values) != len(items):
            raise Violation("items() gives a key twice")
        for item in items:
            partition = self._history.partition_of(item.key)
            self._history.look(item.key, floors[partition], item.version, item.value, "an item")
        self._history.look_at_state(floors, values, "items()")
        return values


class Throwaway:
    """Decides when the next session of a reader ends: at a kill, or after some answers."""

    def __init__(self, history: History, killed: Callable[[], Awaitable[None]], rnd: random.Random) -> None:
        self._history = history
        self._killed = killed
        self._random = rnd

    def next(self) -> Callable[[], Awaitable[None]]:
        if self._random.random() < 0.3:
            return self._killed
        return lambda: self._history.more_answers(self._random.randrange(1, 300))
