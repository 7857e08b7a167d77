"""What nodes and clients run on in tests that leave nothing to chance: time, randomness, and work done on the spot.

Disks in memory are in memory_disk.py.
"""

from __future__ import annotations

import random

import trio

from tailrace.errors import TailraceError
from tailrace_server.compaction.worker import compact, discard

WALL_US = 1_700_000_000_000_000


def fsync_on_loop(committer, *, on_loop=True):
    """Makes ``committer``, or all if it is the class, fsync on the loop; or, with False, in a thread each time.

    A test in which no committer runs makes each fsync on the loop, that which creates the journal's next file, too.
    """
    committer._is_cheap = lambda *_: on_loop


class FakeClock:
    """Wall time and monotonic time, which pass together when they are told to; the wall's may be set besides.

    ``passing`` gives seconds that pass by themselves, as `trio.current_time` does where that is virtual.
    """

    def __init__(self, wall_us=WALL_US, seconds=1_000.0, passing=None):
        self._wall_us = wall_us
        self._seconds = seconds
        self._passing = passing

    def wall_us(self):
        return self._wall_us if self._passing is None else self._wall_us + int(self._passing() * 1e6)

    def monotonic(self):
        return self._seconds if self._passing is None else self._seconds + self._passing()

    def advance(self, seconds):
        """So much time passes."""
        self._wall_us += round(seconds * 1e6)
        self._seconds += seconds

    def jump(self, seconds):
        """Somebody sets the wall clock so far ahead, or back where it is negative."""
        self._wall_us += round(seconds * 1e6)

    def copy(self):
        """One that shows the same, and passes apart from this one."""
        return FakeClock(self._wall_us, self._seconds, self._passing)


class SeededRandomness:
    """Different bytes each time, and the same ones in each run: those of ``rnd``."""

    def __init__(self, rnd=None):
        self._rnd = random.Random(7) if rnd is None else rnd

    def token(self, size):
        return self._rnd.randbytes(size)


class InlineWorkers:
    """A node's threads and processes, as `tailrace_server.runtime.workers.Workers`: all is done on the spot.

    ``before`` is called first each time, and may raise. What takes time overrides ``begin`` and ``end``, which are
    awaited before and after the work.
    """

    def __init__(self, disk):
        self.disk = disk
        self.before = lambda: None

    async def begin(self):
        """A checkpoint, as a thread that is waited for has one."""
        await trio.lowlevel.checkpoint()

    async def end(self):
        """Nothing: the work is done."""

    async def in_thread(self, function):
        await self.begin()
        self.before()
        try:
            return function()
        finally:
            await self.end()

    in_own_thread = in_thread

    async def begin_compaction(self):
        await self.begin()

    async def end_compaction(self, task, result):
        """Called with what was made; where this is cancelled, nobody gets it."""

    async def compact(self, task, rate):
        await self.begin_compaction()
        self.before()
        try:
            result = compact(task, self.disk)
            await self.end_compaction(task, result)
        except (OSError, TailraceError, trio.Cancelled):
            discard(task, self.disk)
            raise
        return result

    async def compact_small(self, task):
        return await self.compact(task, None)


class InlineWorker:
    """What a client's index works on, as `tailrace.trio.host.Worker`, without a thread."""

    def __init__(self, name):
        self.name = name

    def start(self):
        """There is nothing to start."""

    def stop(self):
        """And nothing to end."""

    async def run(self, function, *args):
        with trio.CancelScope(shield=True):  # as with a thread, whose end is waited for
            await trio.lowlevel.checkpoint()
        return function(*args)

    def post(self, function, *args):
        function(*args)
