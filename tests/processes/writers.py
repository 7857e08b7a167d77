"""Writers: each does one thing after the other, and tells the history what it asks for and what it is told."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio
from tests.model.nodes import FEED

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
    from collections.abc import Awaitable, Callable, Iterator

    from .history import History, Write

# What a pipelined writer does until it waits for everything, at most.
ROWS_UNTIL_FLUSH_MAX = 60


@contextlib.contextmanager
def nothing_lost() -> Iterator[None]:
    """The nodes keep whatever level the writer has asked for, and know what they have had."""
    try:
        yield
    except (WritesLost, OutcomeUnknown) as error:
        raise Violation(f"a writer is told: {error}") from error


class Values:
    """Keys that collide, and values none of which is ever used twice."""

    def __init__(self, rnd: random.Random, name: str, keys: list[bytes]) -> None:
        self.random = rnd
        self._name = name
        self._keys = keys
        self._count = 0

    def key(self) -> bytes:
        # Every other one from a tenth of the keys.
        return self.random.choice(self._keys[:20] if self.random.random() < 0.5 else self._keys)

    def value(self) -> bytes:
        self._count += 1
        name = f"{self._name}.{self._count} ".encode()
        size = self.random.choice([0, 0, 10, 100, 100, 1_000, 1_000, 20_000])
        # Half of it can be compressed.
        return name + self.random.randbytes(size // 2) + bytes(size - size // 2)


class Writer:
    """Single writes and batches, at ``level``. ``versions`` are the last known of each key, shared by all that last."""

    def __init__(
        self, history: History, values: Values, versions: dict[bytes, Version], *, level: str, lasting: bool
    ) -> None:
        self.history = history
        self.values = values
        self.versions = versions
        self._level = level
        self._lasting = lasting

    async def step(self, feed: tailrace.Feed) -> bool:
        """One write; False where nobody has answered."""
        action: Callable[[tailrace.Feed], Awaitable[bool]]
        action = self.values.random.choices(
            [self.put, self.delete, self.batch, self.put_if_absent, self.put_if_version, self.delete_if_present],
            [30, 12, 28, 10, 14, 6],
        )[0]
        with nothing_lost():
            return await action(feed)

    async def put(self, feed: tailrace.Feed) -> bool:
        key, value = self.values.key(), self.values.value()
        write = self._ask(key, value, None)
        return await self._single(write, feed.put(key, value, level=self._level))

    async def delete(self, feed: tailrace.Feed) -> bool:
        key = self.values.key()
        version = self.versions.get(key) if self.values.random.random() < 0.3 else None
        write = self._ask(key, None, version and Condition(Kind.IF_VERSION, version))
        return await self._single(write, feed.delete(key, level=self._level, if_version=version))

    async def put_if_absent(self, feed: tailrace.Feed) -> bool:
        key, value = self.values.key(), self.values.value()
        write = self._ask(key, value, Condition(Kind.IF_ABSENT))
        return await self._single(write, feed.put(key, value, level=self._level, if_absent=True))

    async def put_if_version(self, feed: tailrace.Feed) -> bool:
        key, value = self.values.key(), self.values.value()
        version = self.versions.get(key)
        write = self._ask(key, value, version and Condition(Kind.IF_VERSION, version))
        return await self._single(write, feed.put(key, value, level=self._level, if_version=version))

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
            if self._lasting:
                raise Violation(f"a writer is told: {error}") from error
            self.history.refuse(write)
            self.versions.pop(key, None)
        except Retryable as error:
            if not isinstance(error, Unreachable) or error.outcome == "not sent":
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
        if current is not None or self._lasting:  # "not present" is worth no more than the level that was asked for
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
            return False  # of any partition's share nobody knows
        if versions.keys() != writes.keys():
            raise Violation(f"a batch for partitions {sorted(writes)} was written to {sorted(versions)}")
        for partition, write in writes.items():
            self.history.acknowledge(write, versions[partition])
        return True

    def _changes(self, count: int) -> list[tuple[bytes, bytes | None]]:
        """Puts and deletions; what goes to one partition begins with a put, by which all of it can be found."""
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
    """Sessions of ``feed.writer``: many rows, and then all their answers."""

    def __init__(self, history: History, values: Values) -> None:
        self.history = history
        self.values = values

    async def step(self, feed: tailrace.Feed) -> bool:
        """One session; False where it ended with an error: nobody knows what of the last rows was written."""
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


class Restless:
    """A writer that now and then is cancelled in the middle, and connects anew. ``step`` has a writer do one."""

    def __init__(self, writer: Writer, url: str, step: Callable[[Writer, tailrace.Feed], Awaitable[bool]]) -> None:
        self._writer = writer
        self._url = url
        self._step = step

    async def session(self) -> None:
        """From one connection to the next."""
        history, rnd = self._writer.history, self._writer.values.random
        client = tailrace.connect(self._url, name="restless", connect_timeout=60, retry_for=60)
        async with client, trio.open_nursery() as nursery:
            nursery.start_soon(self._write, client.feed(FEED))
            await history.more_answers(rnd.randrange(1, 120))
            nursery.cancel_scope.cancel()

    async def _write(self, feed: tailrace.Feed) -> None:
        while True:
            await self._step(self._writer, feed)
