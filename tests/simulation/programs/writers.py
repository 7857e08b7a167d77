"""Programs that write. They tell the checks each request and each answer."""

from __future__ import annotations

import contextlib

import trio
from tests.processes.writers import TASKS, PipelinedWriter, Values, Writer, put_together

from tailrace import (
    Forbidden,
    OutcomeUnknown,
    Put,
    Retryable,
    Unreachable,
    VersionConflict,
    VersionLost,
    VersionRange,
    WritesLost,
)

from .keys import ANY
from .process import PATIENT_S, Process

# The longest pause of a writer in haste: some of its rows are always about to become durable.
HASTE_PAUSE_SECONDS_MAX = 0.006
HASTE_WRITES = 3
# A write has no answer, or level quorum was refused: perhaps when the mode of the feed was changed, after the write.
UNANSWERED = (OutcomeUnknown, WritesLost, Retryable, Forbidden)


class Haste:
    """A time in which the writer at level memory makes hardly a pause.

    Attributes:
        enough: Set after its first few writes.
    """

    def __init__(self):
        self._on = trio.Event()
        self._left = 0
        self.enough = trio.Event()

    def begin(self):
        self._left = HASTE_WRITES
        self.enough = trio.Event()
        self._on.set()

    def end(self):
        self._on = trio.Event()

    @property
    def is_on(self):
        return self._on.is_set()

    async def begun(self):
        await self._on.wait()

    def written(self):
        self._left -= 1
        if not self._left:
            self.enough.set()


class SmallValues(Values):
    """Values of a few sizes, for the keys that are in use, and now and then for any key."""

    def __init__(self, world, rnd, name, keys):
        super().__init__(rnd, name, keys)
        self._world = world
        self._name = name

    def key(self):
        keys = self._world.keys.in_use if self.random.random() < 0.9 else self._world.keys.all
        return self.random.choice(keys[ANY])

    def value(self):
        self._count += 1
        size = self.random.choice((0, 0, 10, 50, 50, 100, 300, 2_000))
        return f"{self._name}.{self._count} ".encode() + self.random.randbytes(size // 2) + bytes(size - size // 2)


class CarelessWriter(Writer):
    """Writes at level memory, without conditions: a version that it knows may be lost."""

    async def step(self, feed):
        action = self.values.random.choices([self.put, self.together, self.delete, self.batch], [4, 1, 2, 3])[0]
        return await action(feed)

    async def delete(self, feed):
        key = self.values.key()
        return await self._single(self._ask(key, None, None), feed.delete(key, level=self._level))


class ModelWriter(Process):
    """A writer of `tests.processes`, to one node."""

    def __init__(self, world, name, level="disk", *, pipelined=False):
        super().__init__(world, name)
        values = SmallValues(world, self.random, name, world.keys.all[ANY])
        history = world.checks.truth.history
        self._pause_s = 0.4
        self._is_hasty = level == "memory"
        if pipelined:
            self._writer = PipelinedWriter(history, values)
            self._pause_s = 3.0
        elif level == "memory":
            self._writer = CarelessWriter(history, values, {}, level=level, lasting=False)
        else:
            self._writer = Writer(history, values, world.versions, level=level, lasting=True)

    async def session(self):
        await self.repeat(self._step, retry_for=self.random.choice((0.3, 3.0, PATIENT_S)))

    async def _step(self, feed):
        answered = await self._writer.step(feed)
        self.world.report.operation("write" if answered else "write without an answer")
        await self._rest()

    async def _rest(self):
        world, seconds = self.world, self.random.random()
        if not self._is_hasty:
            await self.pause(seconds * self._pause_s)
        elif world.haste.is_on:
            world.haste.written()
            await self.pause(seconds * HASTE_PAUSE_SECONDS_MAX)
        else:
            with trio.move_on_after(seconds * self._pause_s):
                await world.haste.begun()


class LevelWriter(Process):
    """Writes to a set at one level, and now and then with a condition."""

    def __init__(self, world, name, level, pause_s=0.3, keys=""):
        super().__init__(world, name)
        self.level = level
        self._keys = keys or level
        self._pause_s = pause_s
        self._known = {}  # versions, by key

    async def session(self):
        retry_for = PATIENT_S if self.world.is_patient else self.random.choice((0.5, 2.0, PATIENT_S))
        await self.repeat(self._step, retry_for=retry_for)

    async def _step(self, feed):
        key = self.random.choice(self.world.keys.in_use[self._keys])
        actions = [self._put, self._together, self._conditional, self._delete, self._batch]
        action = self.random.choices(actions, [4, 1, 3, 2, 2])[0]
        await action(feed, key)
        await self.pause(self.random.random() * self._pause_s)

    async def _put(self, feed, key):
        value = self.new_value()
        await self._write(key, value, lambda: feed.put(key, value, level=self.level))

    async def _together(self, feed, key):
        """Puts some keys of one partition by a task for each: rows of one turn leave as one block."""
        of = self.world.partition_of
        keys = [other for other in self.world.keys.in_use[self._keys] if of(other) == of(key)][:TASKS]

        async def put(key):
            await self._put(feed, key)
            return True

        await put_together(keys, put)

    async def _conditional(self, feed, key):
        value, version = self.new_value(), self._known.get(key)
        if version is None:
            await self._write(key, value, lambda: feed.put(key, value, level=self.level, if_absent=True))
        else:
            await self._write(key, value, lambda: feed.put(key, value, level=self.level, if_version=version))

    async def _delete(self, feed, key):
        await self._write(key, None, lambda: feed.delete(key, level=self.level))

    async def _batch(self, feed, key):
        """Writes several rows in one block, with keys of one partition."""
        of = self.world.partition_of
        keys = [other for other in self.world.keys.in_use[self._keys] if of(other) == of(key)][:3]
        changes = [(key, self.new_value()) for key in keys]
        write = self.world.checks.promises.asked(self.world.checks.place(of(key)), self.level, changes)
        with contextlib.suppress(*UNANSWERED):
            versions = await feed.write([Put(*change) for change in changes], level=self.level)
            self.world.checks.promises.written(write, versions[of(key)])
            self.world.report.operation(f"batch at {self.level}")

    async def _write(self, key, value, send):
        promises, place = self.world.checks.promises, self.world.checks.place(self.world.partition_of(key))
        write = promises.asked(place, self.level, [(key, value)])
        try:
            version = await send()
        except VersionConflict as conflict:
            promises.refused(write)
            self._known[key] = conflict.current
        except VersionLost:
            promises.refused(write)
            self._known.pop(key, None)
        except UNANSWERED as error:
            self._known.pop(key, None)
            if isinstance(error, Unreachable) and error.outcome == "not sent":
                promises.refused(write)
            self.world.report.operation(f"write at {self.level} without an answer")
        else:
            promises.written(write, range_of(version))
            self._known[key] = None if value is None else version
            self.world.report.operation(f"write at {self.level}")


def range_of(version):
    """Returns the range of one row's version."""
    return VersionRange(version.partition, version.branch, version.seq, version.seq)
