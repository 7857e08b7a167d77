"""Programs that use the set while it is broken: writers, a consumer, indexes, somebody who looks at single keys."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING

import trio
from tests.processes.history import Row
from tests.processes.violation import Violation

import tailrace
from tailrace import Mutations, Positions, Rollback, SnapshotEnd
from tailrace.errors import OutcomeUnknown, Retryable, StreamEnded, VersionConflict, VersionLost
from tailrace.indexes import MemoryIndex, SQLiteIndex
from tailrace.model.hashing import key_hash, partition_of_hash

from .history import History

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tailrace.indexes import Index

PARTITIONS = 3
KEYS = [b"key %d" % number for number in range(60)]
# Of a feed beside the other one, and seldom written: nothing that has no majority yet holds up who looks at them.
QUIET = [b"quiet %d" % number for number in range(10)]
COUNTED = [b"counted %d" % number for number in range(4)]
# Beyond what a set is ever without a leader in a run: who waits so long gets an answer, or the run has failed.
PATIENT_S = 240.0
# Shorter than a change of leader takes an operator: nobody knows then whether it was written.
IMPATIENT_S = 0.5
REFUSALS = (VersionConflict, VersionLost)
IN_DOUBT = (Retryable, OutcomeUnknown)


class Writer:
    """Puts unique values, one after the other, at a level; at times in batches."""

    def __init__(self, name: str, history: History, rnd: random.Random, level: str) -> None:
        self._name = name
        self._history = history
        self._random = rnd
        self._level = level
        self._count = 0

    def _value(self) -> bytes:
        self._count += 1
        return b"%s %d %s" % (self._name.encode(), self._count, b"." * self._random.choice([1, 30, 300]))

    async def step(self, feed: tailrace.Feed) -> None:
        if self._random.random() < 0.2:
            await self._batch(feed)
        else:
            await self.put(feed, self._random.choice(KEYS))

    async def put(self, feed: tailrace.Feed, key: bytes) -> None:
        """One key; nobody knows whether it was written where there was no answer."""
        write = self._history.ask(key, self._value(), self._level)
        with contextlib.suppress(*IN_DOUBT):
            self._history.acknowledge(write, await feed.put(key, write.value, level=self._level))

    async def _batch(self, feed: tailrace.Feed) -> None:
        keys = self._random.sample(KEYS, 12)
        writes = [self._history.ask(key, self._value(), self._level) for key in keys]
        with contextlib.suppress(*IN_DOUBT):
            ranges = await feed.write([tailrace.Put(w.key, w.value) for w in writes], level=self._level)
            for partition, (_, branch, seq, _) in ranges.items():
                own = [write for write in writes if _partition_of(write.key) == partition]
                for offset, write in enumerate(own):
                    self._history.acknowledge(write, tailrace.Version(partition, branch, seq + offset))


def _partition_of(key: bytes) -> int:
    return partition_of_hash(key_hash(key), PARTITIONS)


class Counter:
    """Reads a key at level quorum and writes it on the condition that it is still so: two leaders would show."""

    def __init__(self, name: str, history: History, rnd: random.Random) -> None:
        self._name = name
        self._history = history
        self._random = rnd
        self._count = 0
        self.made = 0

    async def step(self, feed: tailrace.Feed) -> None:
        key = self._random.choice(COUNTED)
        known = self._history.newest.get(key)
        try:
            item = await feed.get(key, level="quorum")
        except IN_DOUBT:
            return
        check_look(key, known, item)
        self._count += 1
        value = b"%s %d" % (self._name.encode(), self._count)
        write = self._history.ask(key, value, "quorum", () if item is None else item.version)
        condition = {"if_absent": True} if item is None else {"if_version": item.version}
        try:
            self._history.acknowledge(write, await feed.put(key, value, level="quorum", **condition))
            self.made += 1
        except REFUSALS:
            write.refused = True
            self._history.answered()
        except IN_DOUBT:
            return


class Looker:
    """Reads single keys of ``keys`` at level quorum: never older than what was acknowledged before."""

    def __init__(self, history: History, rnd: random.Random, keys: list[bytes]) -> None:
        self._keys = keys
        self._history = history
        self._random = rnd
        self.looks = 0

    async def step(self, feed: tailrace.Feed) -> None:
        key = self._random.choice(self._keys)
        known = self._history.newest.get(key)
        with contextlib.suppress(*IN_DOUBT):
            item = await feed.get(key, level="quorum")
            check_look(key, known, item)
            self.looks += 1
            if item is not None:
                self._history.keep(key, item.version)


def check_look(key: bytes, known: tailrace.Version | None, item: tailrace.Item | None) -> None:
    """Violation where a look at level quorum is older than what was ``known`` when it began."""
    if known is not None and (item is None or item.version.seq < known.seq):
        raise Violation(f"{key!r} was at {known}, and a get at level quorum says {item}")


class Consumer:
    """Consumes the feed, with a new stream now and then, and has what it was given."""

    def __init__(self, name: str, history: History, rnd: random.Random, level: str) -> None:
        self.name = name
        self.rows: dict[int, list[Row]] = {partition: [] for partition in range(PARTITIONS)}
        self.sessions = self.rollbacks = self.barriers = 0
        self._history = history
        self._random = rnd
        self._level = level
        self._positions: Positions | None = None

    async def session(self, feed: tailrace.Feed, events: int | None = None) -> None:
        """So many events; without a number until it has caught up with what was acknowledged when it began."""
        self.sessions += 1
        floors = dict(self._history.floors)
        since = "beginning" if self._positions is None else Positions.parse(str(self._positions))
        async with feed.consume(since, visibility=self._level) as stream:
            if events is None:
                await self._catch_up(stream, floors)
            else:
                await self._take(stream, events)

    async def _take(self, stream: tailrace.Stream, events: int) -> None:
        async for event in stream:
            self._handle(event, stream)
            events -= 1
            if not events:
                return

    async def _catch_up(self, stream: tailrace.Stream, floors: dict[int, int]) -> None:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                await stream.barrier()
                self.barriers += 1
                nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            async for event in stream:
                self._handle(event, stream)
        for partition, floor in floors.items():
            if len(self.rows[partition]) < floor:
                raise Violation(
                    f"{self.name}: a barrier came back at {len(self.rows[partition])} of partition {partition}, "
                    f"and {floor} was acknowledged before"
                )

    def _handle(self, event: object, stream: tailrace.Stream) -> None:
        self._apply(event)
        self._positions = stream.latest_positions

    def _apply(self, event: object) -> None:
        if isinstance(event, Mutations) and not event.refetched:
            rows = self.rows[event.partition]
            for mutation in event:
                if mutation.seq != len(rows) + 1:
                    raise Violation(f"{self.name}: {mutation.seq} of {event.partition} after {len(rows)}")
                rows.append(Row(mutation.key, mutation.value, mutation.timestamp))
        elif isinstance(event, Rollback):
            if self._level == "quorum":
                raise Violation(f"{self.name}: what it was shown at level quorum is gone: {event}")
            self.rollbacks += 1
            del self.rows[event.partition][event.seq :]
        elif isinstance(event, SnapshotEnd):
            if event.last_seq != len(self.rows[event.partition]):
                raise Violation(f"{self.name}: {event} after {len(self.rows[event.partition])}")
            if self._level == "quorum":
                self._history.floors[event.partition] = max(self._history.floors[event.partition], event.last_seq)


class Follower:
    """An index that a feed is followed into; ``path``: an SQLite file, else in memory."""

    def __init__(self, name: str, history: History, path: Path | None = None, visibility: str = "disk") -> None:
        self.name = name
        self.barriers = 0
        self._history = history
        self._path = path
        self._visibility = visibility
        self._memory = MemoryIndex()

    def _index(self) -> Index:
        return self._memory if self._path is None else SQLiteIndex(self._path)

    async def session(self, feed: tailrace.Feed, answers: int) -> None:
        """Follows from one barrier to another one, so many answers of writers later."""
        async with feed.follow(self._index(), visibility=self._visibility) as follower:
            await self._barrier(follower)
            await self._history.more_answers(answers)
            await self._barrier(follower)

    async def _barrier(self, follower: tailrace.Follower) -> None:
        floors = dict(self._history.floors)
        try:
            await follower.barrier()
        except StreamEnded as error:
            raise Violation(f"{self.name}: {error}") from error
        self.barriers += 1
        for partition, seq in follower.positions.seqs().items():
            if seq < floors.get(partition, 0):
                raise Violation(f"{self.name}: a barrier came back at {partition}/{seq}, not {floors[partition]}")

    async def catch_up(self, feed: tailrace.Feed) -> dict[bytes, bytes]:
        """What it holds after a last barrier."""
        async with feed.follow(self._index(), visibility=self._visibility) as follower:
            await self._barrier(follower)
        if self._path is None:
            return self._memory.snapshot()
        with contextlib.closing(sqlite3.connect(self._path)) as connection:
            return dict(connection.execute("SELECT key, value FROM items"))
