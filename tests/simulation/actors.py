"""Who uses the feed: writers and followers, each on a machine of its own, killed and started again like any process."""

from __future__ import annotations

import contextlib

import trio
from tests.model.history import Violation
from tests.model.writers import PipelinedWriter, Values, Writer

import tailrace
from tailrace import Retryable, StreamEnded
from tailrace.host import Host
from tailrace.indexes import MemoryIndex

FEED = "simulated"
# Longer than any outage here: whoever waits that long gets an answer.
PATIENT_S = 600.0


class InlineWorker:
    """What an index works on, without a thread."""

    def __init__(self, name):
        self.name = name

    def start(self):
        """There is nothing to start."""

    def stop(self):
        """And nothing to end."""

    async def run(self, function, *args):
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
        return function(*args)


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


class Process:
    """A program on a machine of its own: runs ``session`` again and again; may be killed in the middle of anything."""

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.random = world.random_of(name)
        self._scope = trio.CancelScope()
        self._paused_s = 0.0
        self.until = world.is_over
        self.ended = trio.Event()

    def connect(self, **options):
        host = Host(connect=self.world.network.of(self.name).connect, worker=InlineWorker, random=self.random)
        return tailrace.connect(self.world.url, name=self.name, host=host, **options)

    def kill(self, paused_s):
        """Ends it; it is started again after so many seconds."""
        self._paused_s = paused_s
        self.world.network.process_died(self.name)
        self._scope.cancel()

    async def run(self):
        while not self.until.is_set():
            with trio.CancelScope() as self._scope:
                await self.session()
            if self._paused_s:
                paused_s, self._paused_s = self._paused_s, 0.0
                await self.pause(paused_s)
        self.ended.set()

    async def pause(self, seconds):
        """Waits, but no longer than there is anything to do."""
        with trio.move_on_after(seconds):
            await self.world.is_over.wait()

    async def session(self):
        raise NotImplementedError


class WritingProcess(Process):
    """One of tests/model's writers."""

    def __init__(self, world, name, level="disk", *, pipelined=False):
        super().__init__(world, name)
        values = SmallValues(world, self.random, name, world.keys)
        history = world.truth.history
        self._pause_s = 0.4
        if pipelined:
            self._writer = PipelinedWriter(history, values)
            self._pause_s = 3.0
        elif level == "memory":
            self._writer = CarelessWriter(history, values, {}, level=level, lasting=False)
        else:
            self._writer = Writer(history, values, world.versions, level=level, lasting=True)

    async def session(self):
        retry_for = self.random.choice((0.3, 3.0, PATIENT_S))
        with contextlib.suppress(Retryable):
            async with self.connect(retry_for=retry_for, connect_timeout=5.0) as client:
                feed = client.feed(FEED)
                while not self.world.is_over.is_set():
                    answered = await self._writer.step(feed)
                    self.world.report.operation("write" if answered else "write without an answer")
                    await self.pause(self.random.random() * self._pause_s)
            return
        await trio.sleep(0.1)


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
        crossing = report.barrier_begins(self.name)
        try:
            await self.follower.barrier()
        except StreamEnded as error:
            raise Violation(f"{self.name}: {error}") from error
        report.barrier_ends(crossing)
        for number, (floor, forks) in floors.items():
            left = truth.partitions[number].still(floor, forks)
            self.index.check_covers(number, left, f"{self.name} after a barrier")
