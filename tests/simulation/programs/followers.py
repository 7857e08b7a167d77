"""Programs that follow the feed into an index."""

from __future__ import annotations

import contextlib

import trio
from tests.crashing_indexes import Crash
from tests.processes.violation import Violation

from tailrace import Retryable, StreamEnded, VersionLost

from .indexes import RINGS, CheckedIndex, LevelIndex
from .process import PATIENT_S, Process


class FollowingProcess(Process):
    """Follows the feed into an index, which outlives the program, and asks for barriers.

    Attributes:
        follower: The follower that runs; None: none does.
        started: Set while a follower runs.
    """

    def __init__(self, world, name, level):
        super().__init__(world, name)
        self.level = level
        self.index = self._new_index()
        self.follower = None
        self.started = trio.Event()
        self.until = world.may_end

    def _new_index(self):
        raise NotImplementedError

    def _options(self):
        """Returns the options of the follower, besides its level."""
        return {}

    async def session(self):
        try:
            async with contextlib.AsyncExitStack() as stack:
                client = await stack.enter_async_context(self.connect(retry_for=PATIENT_S, connect_timeout=5.0))
                feed = client.feed(self.world.feed_name)
                following = feed.follow(self.index, visibility=self.level, **self._options())
                self.follower = await stack.enter_async_context(following)
                self.started.set()
                while not self.world.is_over.is_set():
                    await self._ask_for_barriers()
                await self.world.may_end.wait()
        except Retryable:
            if self.follower is not None:
                raise
            await trio.sleep(0.1)  # no node has answered at the start
        except Crash:
            pass  # the program is started again
        finally:
            self.follower = None
            self.started = trio.Event()

    async def _ask_for_barriers(self):
        raise NotImplementedError

    async def barrier(self):
        """Asks for a barrier, and checks or notes the state of the index when the barrier returns."""
        raise NotImplementedError

    async def catch_up(self):
        """Waits until the index has every acknowledged write."""
        await self.started.wait()
        await self.barrier()

    def be_spared(self):
        """Ends the faults of this program."""


class CrashingFollower(FollowingProcess):
    """A follower of one node, with an index of some kind that dies at any of its steps."""

    def __init__(self, world, name, kind, level="disk"):
        self._kind = kind
        super().__init__(world, name, level)
        self._ring = self.random.choice(RINGS)

    def _new_index(self):
        return CheckedIndex.of(self.world, self.name, self._kind, self.level, self._crashed)

    def _options(self):
        return {"ring": self._ring}

    def be_spared(self):
        self.index.steps.left = None

    @property
    def positions(self):
        """The positions of the index."""
        return self.index.positions

    def _crashed(self):
        """Ends the program, which has died in a step of its index."""
        self.world.report.fault("follower died in its index", self.name)
        self.kill(self.random.random())

    async def _ask_for_barriers(self):
        await self.pause(self.random.random() * 4.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.read_last_write)
            for _ in range(self.random.choice((1, 1, 3))):
                nursery.start_soon(self.barrier)

    async def barrier(self):
        """Asks for a barrier, and checks that the index has every write that was acknowledged before."""
        await trio.sleep(self.random.random() * 0.01)
        truth, report = self.world.checks.truth, self.world.report
        floors = truth.floors()
        begun = report.barrier_begins(self.name)
        try:
            await self.follower.barrier()
        except StreamEnded as error:
            if self.index.is_dead:
                return
            raise Violation(f"{self.name}: {error}") from error
        report.barrier_ends(self.name, begun)
        for number, (floor, forks) in floors.items():
            left = truth.partitions[number].still(floor, forks)
            self.index.check_covers(number, left, "after a barrier")

    async def read_last_write(self):
        """Waits for the last write that was acknowledged. Only a crash may have taken that write."""
        history = self.world.checks.truth.history
        version = history.last_version
        if version is None:
            return
        try:
            await self.follower.wait_for(version)
        except StreamEnded as error:
            if self.index.is_dead:
                return
            raise Violation(f"{self.name}: {error}") from error
        except VersionLost as error:
            rows = self.world.checks.truth.partitions[version.partition].rows
            log = history.branches[version.partition].log
            if version.seq <= len(rows) and log.branch_at(version.seq) == version.branch:
                raise Violation(f"{self.name}: {error}, and it is there") from error
            self.world.report.operation("version lost", self.name)
        else:
            self.world.report.operation("version read", self.name)


class LevelFollower(FollowingProcess):
    """A follower of a set, at one level."""

    def _new_index(self):
        return LevelIndex(self.world, self.name, self.level)

    async def _ask_for_barriers(self):
        await self.pause(self.random.random() * 2.0)
        await self.barrier()

    async def barrier(self):
        """Asks for a barrier, and notes the acknowledgements before it and the positions after it."""
        checks = self.world.checks
        floors, begun = checks.promises.floors(), checks.histories.moment()
        await self.follower.barrier()
        checks.barriers.append((self.name, begun, floors, dict(self.index.positions)))
        self.world.report.operation("barrier", self.name)
