"""Writers: each does one write after the other, and tells the history each request and answer."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

import tailrace
from tailrace import (
    Delete,
    OutcomeUnknown,
    Put,
    Retryable,
    Unreachable,
    Version,
    VersionConflict,
    VersionLost,
    WritesLost,
)

from .history import Condition, Kind
from .violation import Violation

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from .history import History, Write

# The most rows that a pipelined writer writes between two flushes.
ROWS_UNTIL_FLUSH_MAX = 60


# The tasks that put at once.
TASKS = 4

# Bytes of a value besides its name.
SIZES = (0, 0, 10, 100, 100, 1_000, 1_000, 20_000)


@contextlib.contextmanager
def nothing_lost() -> Iterator[None]:
    """Raises Violation if a writer is told that an outcome is unknown, or that writes are lost."""
    try:
        yield
    except (WritesLost, OutcomeUnknown) as error:
        raise Violation(f"a writer is told: {error}") from error


async def put_together(keys: Iterable[bytes], put: Callable[[bytes], Awaitable[bool]]) -> bool:
    """Calls ``put`` twice for each key, by a task for each; returns whether all had an answer."""
    answered: list[bool] = []

    async def put_twice(key: bytes) -> None:
        first = await put(key)
        answered.extend((first, await put(key)))

    try:
        async with trio.open_nursery() as nursery:
            for key in sorted(keys):
                nursery.start_soon(put_twice, key)
    except* Violation as group:
        raise group.exceptions[0] from None
    return all(answered)


class Values:
    """Keys that collide, and values that are used once."""

    def __init__(self, rnd: random.Random, name: str, keys: list[bytes], sizes: Sequence[int] = SIZES) -> None:
        self.random = rnd
        self._sizes = sizes
        self._name = name
        self._keys = keys
        self._count = 0

    def key(self) -> bytes:
        # Every other one from a tenth of the keys.
        return self.random.choice(self._keys[:20] if self.random.random() < 0.5 else self._keys)

    def value(self) -> bytes:
        self._count += 1
        name = f"{self._name}.{self._count} ".encode()
        size = self.random.choice(self._sizes)
        # Half of it can be compressed.
        return name + self.random.randbytes(size // 2) + bytes(size - size // 2)


class Writer:
    """Single writes and batches, at ``level``.

    Args:
        history: Is told of every write.
        values: Where keys and values come from.
        versions: The last known version of each key. Writers whose writes last share it.
        level: The level of all writes.
        lasting: Whether an acknowledged write lasts.
        of_set: The nodes are a set. After a change of leader an outcome may be unknown. A node that leads no more may
            refuse a write for a version that does not last.
    """

    def __init__(
        self,
        history: History,
        values: Values,
        versions: dict[bytes, Version],
        *,
        level: str,
        lasting: bool,
        of_set: bool = False,
    ) -> None:
        self.history = history
        self.values = values
        self.versions = versions
        self._level = level
        self._lasting = lasting
        self._of_set = of_set

    async def step(self, feed: tailrace.Feed) -> bool:
        """Does one write; returns False if there was no answer."""
        action: Callable[[tailrace.Feed], Awaitable[bool]]
        action = self.values.random.choices(
            [
                self.put,
                self.together,
                self.delete,
                self.batch,
                self.put_if_absent,
                self.put_if_version,
                self.delete_if_present,
            ],
            [20, 10, 12, 28, 10, 14, 6],
        )[0]
        if not self._of_set:
            with nothing_lost():
                return await action(feed)
        with contextlib.suppress(OutcomeUnknown):
            return await action(feed)
        return False

    async def put(self, feed: tailrace.Feed) -> bool:
        return await self.put_on(feed, self.values.key(), None)

    async def put_on(self, feed: tailrace.Feed, key: bytes, condition: Condition | None) -> bool:
        """Puts a key, if ``condition`` holds; returns False if there was no answer."""
        value = self.values.value()
        is_first = condition is not None and condition.kind is Kind.IF_ABSENT
        version = None if condition is None else condition.version
        write = self._ask(key, value, condition)
        call = feed.put(key, value, level=self._level, if_version=version, if_absent=is_first)
        return await self._single(write, call)

    async def together(self, feed: tailrace.Feed) -> bool:
        """Puts a few keys by a task for each, twice: the client sends what they put in one turn as one block."""
        return await put_together({self.values.key() for _ in range(TASKS)}, lambda key: self._put_watched(feed, key))

    async def _put_watched(self, feed: tailrace.Feed, key: bytes) -> bool:
        with contextlib.suppress(OutcomeUnknown) if self._of_set else nothing_lost():
            return await self.put_on(feed, key, None)
        return False

    async def delete(self, feed: tailrace.Feed) -> bool:
        key = self.values.key()
        version = self.versions.get(key) if self.values.random.random() < 0.3 else None
        write = self._ask(key, None, version and Condition(Kind.IF_VERSION, version))
        return await self._single(write, feed.delete(key, level=self._level, if_version=version))

    async def put_if_absent(self, feed: tailrace.Feed) -> bool:
        return await self.put_on(feed, self.values.key(), Condition(Kind.IF_ABSENT))

    async def put_if_version(self, feed: tailrace.Feed) -> bool:
        key = self.values.key()
        version = self.versions.get(key)
        return await self.put_on(feed, key, version and Condition(Kind.IF_VERSION, version))

    async def delete_if_present(self, feed: tailrace.Feed) -> bool:
        key = self.values.key()
        write = self._ask(key, None, Condition(Kind.IF_PRESENT))
        return await self._single(write, feed.delete_if_present(key, level=self._level))

    def _ask(self, key: bytes, value: bytes | None, condition: Condition | None) -> Write:
        (write,) = self.history.ask([(key, value)], condition, lasting=self._lasting).values()
        return write

    async def _single(self, write: Write, call: Awaitable[Version | None]) -> bool:
        ((key, _),) = write.changes
        what = f"the refusal of {write.condition}"
        try:
            version = await call
        except VersionConflict as error:
            self._refused(write, key, error.current, what)
        except VersionLost as error:
            if self._lasting and not self._of_set:
                raise Violation(f"a writer is told: {error}") from error
            self.history.refuse(write)
            self.versions.pop(key, None)
        except Retryable as error:
            # In a set an earlier attempt may have been written by a node that leads no more.
            if not self._of_set and (not isinstance(error, Unreachable) or error.outcome == "not sent"):
                self.history.refuse(write)
            return False
        else:
            if version is None:
                self._refused(write, key, None, what)
            else:
                partition, branch, seq = version
                self.history.acknowledge(write, tailrace.VersionRange(partition, branch, seq, seq))
                self.versions[key] = version
        return True

    def _refused(self, write: Write, key: bytes, current: Version | None, what: str) -> None:
        condition = write.condition
        holds = condition is not None and {
            Kind.IF_ABSENT: current is None,
            Kind.IF_VERSION: current == condition.version,
            Kind.IF_PRESENT: current is not None,
        }.get(condition.kind)
        if condition is None or holds:
            raise Violation(f"{write} was refused with {current}")
        self.history.refuse(write)
        # "not present" lasts no longer than the level that was asked for.
        if not self._of_set and (current is not None or self._lasting):
            self.history.look(key, write.floor, current, None, what)
        self.history.answered()
        if current is not None:
            self.versions[key] = current

    async def batch(self, feed: tailrace.Feed) -> bool:
        changes = self._changes(self.values.random.randrange(2, 25))
        writes = self.history.ask(changes, lasting=self._lasting)
        try:
            versions = await feed.write(
                [Delete(key) if value is None else Put(key, value) for key, value in changes], level=self._level
            )
        except VersionConflict as error:
            raise Violation(f"a batch without a condition: {error}") from error
        except Retryable:
            return False  # the outcome of every partition's share is unknown
        if versions.keys() != writes.keys():
            raise Violation(f"a batch for partitions {sorted(writes)} was written to {sorted(versions)}")
        for partition, write in writes.items():
            self.history.acknowledge(write, versions[partition])
        return True

    def _changes(self, count: int) -> list[tuple[bytes, bytes | None]]:
        """Returns puts and deletions. A partition's share begins with a put, by which the share can be found."""
        begun: set[int] = set()
        changes: list[tuple[bytes, bytes | None]] = []
        for _ in range(count):
            key = self.values.key()
            partition = self.history.partition_of(key)
            deleted = partition in begun and self.values.random.random() < 0.25
            begun.add(partition)
            changes.append((key, None if deleted else self.values.value()))
        return changes


class PipelinedWriter:
    """Sessions of ``feed.writer``: many rows, then all their answers."""

    def __init__(self, history: History, values: Values) -> None:
        self.history = history
        self.values = values

    async def step(self, feed: tailrace.Feed) -> bool:
        """Does one session; returns False if it ended with an error: the outcome of the last rows is unknown."""
        rnd = self.values.random
        pipelines: dict[int, list[Write]] = {}
        rows = rnd.choice([1, 3, 10])
        with contextlib.suppress(Retryable), nothing_lost():
            async with feed.writer(batch_rows=rows, linger_s=rnd.choice([0, 0.002])) as writer:
                for _ in range(rnd.randrange(1, 4)):
                    writes = [await self._row(writer, pipelines) for _ in range(rnd.randrange(ROWS_UNTIL_FLUSH_MAX))]
                    versions = await writer.flush()
                    for write in writes:
                        if write.partition not in versions:
                            raise Violation(f"{write} was flushed, to {sorted(versions)}")
                        self.history.acknowledge_within(write, versions[write.partition])
            return True
        return False

    async def _row(self, writer: tailrace.Writer, pipelines: dict[int, list[Write]]) -> Write:
        key = self.values.key()
        value = self.values.value() if self.values.random.random() < 0.8 else None
        (write,) = self.history.ask([(key, value)]).values()
        if write.partition not in pipelines:
            pipelines[write.partition] = []
            self.history.pipelines.append(pipelines[write.partition])
        pipelines[write.partition].append(write)
        await (writer.delete(key) if value is None else writer.put(key, value))
        return write


class Counter:
    """Reads a key at level quorum, and writes it on the condition that it is still so: two leaders would show."""

    def __init__(self, writer: Writer, keys: list[bytes]) -> None:
        self._writer = writer
        self._keys = keys

    async def step(self, feed: tailrace.Feed) -> bool:
        """Reads and writes one key; returns False if there was no answer."""
        history = self._writer.history
        key = self._writer.values.random.choice(self._keys)
        floor = history.floors[history.partition_of(key)]
        with contextlib.suppress(Retryable, OutcomeUnknown):
            item = await feed.get(key, level="quorum")
            version, value = (None, None) if item is None else (item.version, item.value)
            history.look(key, floor, version, value, "a get at level quorum")
            condition = Condition(Kind.IF_ABSENT) if version is None else Condition(Kind.IF_VERSION, version)
            return await self._writer.put_on(feed, key, condition)
        return False


class Restless:
    """A writer that is now and then cancelled in the middle, and connects anew. ``step`` has a writer do one write."""

    def __init__(
        self, writer: Writer, url: str, feed: str, step: Callable[[Writer, tailrace.Feed], Awaitable[bool]]
    ) -> None:
        self._writer = writer
        self._url = url
        self._feed = feed
        self._step = step

    async def session(self) -> None:
        """Writes on one connection until the session is cancelled."""
        history, rnd = self._writer.history, self._writer.values.random
        client = tailrace.connect(self._url, name="restless", connect_timeout=60, retry_for=60)
        async with client, trio.open_nursery() as nursery:
            nursery.start_soon(self._write, client.feed(self._feed))
            await history.more_answers(rnd.randrange(1, 120))
            nursery.cancel_scope.cancel()

    async def _write(self, feed: tailrace.Feed) -> None:
        while True:
            await self._step(self._writer, feed)
