"""Who writes: the writers of tests/model, each in a process that is killed and started again like any other."""

from __future__ import annotations

import contextlib

import trio
from tests.processes.writers import PipelinedWriter, Values, Writer

from tailrace import Retryable

from .process import FEED, PATIENT_S, Process

# Between two writes of who is in haste: some of what it has written is always about to become durable.
HASTE_PAUSE_SECONDS_MAX = 0.006
HASTE_WRITES = 3


class Haste:
    """While it is on, who writes at level memory makes hardly a pause; ``enough``: he has written a little."""

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
    """Values of a few sizes; keys of the partitions that are in use at the time, and now and then of any."""

    def __init__(self, world, rnd, name, keys):
        super().__init__(rnd, name, keys)
        self._world = world
        self._name = name

    def key(self):
        keys = self._world.keys_in_use if self.random.random() < 0.9 else self._world.keys
        return self.random.choice(keys)

    def value(self):
        self._count += 1
        size = self.random.choice((0, 0, 10, 50, 50, 100, 300, 2_000))
        return f"{self._name}.{self._count} ".encode() + self.random.randbytes(size // 2) + bytes(size - size // 2)


class CarelessWriter(Writer):
    """Writes at level memory, without conditions: what it was told may be lost by then."""

    async def step(self, feed):
        action = self.values.random.choices([self.put, self.delete, self.batch], [5, 2, 3])[0]
        return await action(feed)

    async def delete(self, feed):
        key = self.values.key()
        return await self._single(self._ask(key, None, None), feed.delete(key, level=self._level))


class WritingProcess(Process):
    """One of tests/model's writers."""

    def __init__(self, world, name, level="disk", *, pipelined=False):
        super().__init__(world, name)
        values = SmallValues(world, self.random, name, world.keys)
        history = world.truth.history
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
        retry_for = self.random.choice((0.3, 3.0, PATIENT_S))
        with contextlib.suppress(Retryable), self.world.damage():
            async with self.connect(retry_for=retry_for, connect_timeout=5.0) as client:
                feed = client.feed(FEED)
                while not self.world.is_over.is_set():
                    answered = await self._writer.step(feed)
                    self.world.report.operation("write" if answered else "write without an answer")
                    await self._rest()
            return
        await trio.sleep(0.1)

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
