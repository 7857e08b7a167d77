"""A machine with a node on it: its disk outlives the node's processes, each of which is a `Life`.

A life ends at any moment: at a call of the disk, which then raises `Crashed`, or by a call of `kill`. From that moment
on nothing that its tasks still do has an effect: its disk refuses every call, and its connections are those of a dead
process. At that moment the disk decides which bytes it keeps: all that were written if the process was killed, and any
part of those that were not synced if the power was cut.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import sys
from unittest import mock

import trio
from tests.fake_host import FakeClock, InlineWorkers, SeededRandomness
from tests.memory_disk import LOSE, READING, Crashed, MemoryDisk, failure
from tests.processes.violation import Violation

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace_server.config import Config, Limits, StorageConfig
from tailrace_server.node.start import open_node
from tailrace_server.runtime.host import Host

from .virtual_time import Alarm

DATA = "/data"
PORT = 4700
# So small that a run flushes, compacts, purges, rotates and trims all the time.
STORAGE = StorageConfig(
    memory_bytes_max=60_000,
    segment_bytes=1_500,
    flush_age_s=4.0,
    journal_file_bytes_max=2_500,
    journal_bytes_max=10_000,
    reserve_bytes=24_000,
    stage_age_s=4.0,
    free_bytes_min=4_000,
    compaction_rate=0,
    check_rate=0,
    stage_kept_bytes_max=2_000,
)
LIMITS = Limits(noop_interval_s=1.0, hello_timeout_s=5.0)
# Calls of the disk that may be made to fail.
FAILING = ("write_at", "sync", "rename", "sync_directory", "remove", "create", "truncate", "open", "read_at")
# The longest pause before a machine starts its next node.
MISSES_EVERY = 2  # reads of a disk: one needs a thread, and the next one is in memory
RESTART_SECONDS = 1.0


class End(enum.Enum):
    """How a life ends."""

    STOP = "a clean stop"
    KILL = "a killed process"
    POWER = "a power cut"


class Life:
    """One process of a node.

    Attributes:
        waits: Alarms that a cancellation would wait for. A death ends them.
    """

    def __init__(self, machine):
        self.machine = machine
        self.is_over = False
        self.node = None
        self.scope = trio.CancelScope()
        self.waits = {}
        self.stopping = trio.Event()

    def die(self):
        """Ends the process: nothing that its tasks still do has an effect."""
        if self.is_over:
            return
        self.is_over = True
        self.machine.died(self)
        self.scope.cancel()
        for wait in list(self.waits):
            wait.ring_now()

    def check(self):
        if self.is_over:
            raise Crashed


class DiskOfLife:
    """The machine's disk as a life sees it, or a file or lock of it."""

    def __init__(self, inner, life):
        self._inner = inner
        self._life = life

    def __getattr__(self, name):
        """Returns a method, and keeps it for the next time."""
        method, life = getattr(self._inner, name), self._life
        opens = name in ("create", "open", "lock")

        def call(*args, **kwargs):
            life.check()
            result = method(*args, **kwargs)
            return DiskOfLife(result, life) if opens else result

        self.__dict__[name] = call
        return call


class SimulatedWorkers(InlineWorkers):
    """Workers in the run's own thread. Each job takes some time, and has its effect at one moment of it."""

    def __init__(self, life, rnd):
        super().__init__(DiskOfLife(life.machine.disk, life))
        self._life = life
        self._rnd = rnd

    async def begin(self):
        """Waits for a while, which no cancellation cuts short, while other tasks go on."""
        await super().begin()
        machine = self._life.machine
        seconds = self._rnd.choice((0, 0, 0.0005, 0.003, machine.slowness_s)) + machine.stall_s
        if seconds:
            alarm = Alarm(seconds, is_shielded=True)
            self._life.waits[alarm] = None
            await alarm.ring()
            del self._life.waits[alarm]
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
        self._life.check()

    end = begin

    async def compact(self, task, rate):
        nbytes = self._life.machine.block_bytes
        return await super().compact(task if nbytes is None else task._replace(block_bytes=nbytes), rate)

    async def begin_compaction(self):
        await trio.sleep(self._rnd.choice((0, 0.01, 0.5)))

    async def end_compaction(self, task, result):
        self._life.machine.report.compacted(task, result)
        await self.begin_compaction()


class Machine:
    """A machine with a disk. ``on_start(node)`` is called with each node that has come up; ``name`` is its host.

    ``changes`` are those of the node's `Config`.
    """

    def __init__(self, name, rnd, network, clock, report, on_start, **changes):
        self.name = name
        self.disk = _disk()
        self.report = report
        self.slowness_s = 0.0
        self.stall_s = 0.0  # how much longer each call takes that waits for the disk
        self.life = None
        self._clock = clock  # trio's
        self.node_clock = FakeClock(seconds=0.0, passing=trio.current_time)  # passes as trio's does
        self._rnd = rnd
        self._network = network
        self._on_start = on_start
        self._crash_in = None  # how many changing calls are left until the next crash, and its kind
        self.loses_all = False  # the next power cut loses all bytes that were not synced
        self.block_bytes = None  # the size of blocks of compacted segments; None: as in production
        self._sync_crash_in = None  # how many fsyncs are left until the power goes
        self._failing = None
        self._failing_call = None  # how many changing calls are left until the one that fails, and its errno
        self._watch = None  # called with the name and the path of each call of the disk, before it
        self.failures = 0  # how many calls of the disk have failed
        # Since a node has last come up: how many were started, and how they ended.
        self.starts = 0
        self.may_be_clean = True  # the last stop
        self.lost_power = False
        self._may_start = trio.Event()
        self._may_start.set()
        self._up = trio.Event()
        self._gone = trio.Event()
        self.config = Config(
            DATA, listen=Address(name, PORT), http=None, ws=None, storage=STORAGE, limits=LIMITS, **changes
        )
        self.disk.make_directory(DATA)
        self._lists = {}  # disk -> the list of members that a node is started with on it, if it is another one

    # Faults

    def crash_at_call(self, calls, end):
        """Ends the life at a changing call of the disk, after ``calls`` others."""
        self._crash_in = (calls, end)

    def crash_at_sync(self, syncs):
        """Cuts the power at an fsync, after ``syncs`` others: rows that were shown at level memory are lost."""
        self._sync_crash_in = syncs

    def fail_calls(self, names, chance, code):
        """Lets each of these calls fail with ``chance``, until ``mend``."""
        self._failing = (frozenset(names), chance, code)

    def fail_once(self, calls, code):
        """Lets one changing call of the disk fail, after ``calls`` others."""
        self._failing_call = (calls, code)

    def watch_calls(self, watch):
        """Calls ``watch(name, path)`` before each call of the disk, of all lives; None ends that.

        What it plans for the next call comes to that call.
        """
        self._watch = watch

    def fill(self, free_bytes):
        """Leaves ``free_bytes`` on the disk, until ``mend``."""
        self.failures += 1
        self.disk.size_bytes -= self.disk.free - free_bytes

    def expect_nothing(self):
        """Drops the crashes that were planned."""
        self._crash_in = self._sync_crash_in = None

    def mend(self):
        self._failing = self._failing_call = None
        self.slowness_s = self.stall_s = 0.0
        self.disk.size_bytes = 1 << 40

    def replace_disk(self, members=None):
        """Replaces the disk by an empty one, while no node runs.

        ``members``: the list that the node is started with on this disk; None: the one that the machine has begun with.
        """
        assert self.life is None, "the node that uses the disk has to be stopped first"
        self.disk = _disk()
        self.disk.make_directory(DATA)
        if members is not None:
            self._lists[self.disk] = members

    def put_disk(self, disk):
        """Replaces the disk by another one, while no node runs. Returns the disk before."""
        assert self.life is None, "the node that uses the disk has to be stopped first"
        before, self.disk = self.disk, disk
        return before

    @property
    def has_faults(self):
        """Whether calls of the disk may fail at the moment."""
        return self._failing is not None or self._failing_call is not None or self.disk.size_bytes < 1 << 40

    @property
    def has_given_up(self):
        """Whether the node has to be restarted: it takes no more writes, or could not read segments."""
        node = None if self.life is None else self.life.node
        if node is None:
            return False
        return (
            node.storage.committer.failure is not None
            or node.storage.journal.failed is not None
            or bool(node.storage.damages)
        )

    def check_undamaged(self):
        """Checks that the node could read its segments; only a disk that has failed, or a damaged one, may prevent it.

        Raises:
            Violation: The node has found a damaged segment on a whole disk: it was written or removed by a bug.
        """
        node = None if self.life is None else self.life.node
        if node is not None and node.storage.damages and not self.failures and not self.disk.flips:
            raise Violation(f"{self.name}, whose disk is whole: {next(iter(node.storage.damages.values()))}")

    def _before(self, name, path):
        if self._watch is not None:
            self._watch(name, path)
            self.life.check()
        if self._crash_in is not None and name not in READING:
            calls, end = self._crash_in
            if calls == 0:
                self._crash_in = None
                self.disk.torn_bytes = self._rnd.choice((0, 0, 10, 60, 1_000))
                self.life.end = end
                self.life.die()
                raise Crashed
            self._crash_in = (calls - 1, end)
        if self._sync_crash_in is not None and name == "sync":
            if self._sync_crash_in == 0:
                self._sync_crash_in = None
                self.life.end = End.POWER
                self.life.die()
                raise Crashed
            self._sync_crash_in -= 1
        if self._failing_call is not None and name not in READING:
            calls, code = self._failing_call
            self._failing_call = (calls - 1, code)
            if calls == 0:  # the count goes on below 0 until `mend`, since the node may fail later because of it
                self.failures += 1
                raise failure(code, path)
        if self._failing is not None:
            names, chance, code = self._failing
            if name in names and self._rnd.random() < chance:
                self.disk.torn_bytes = self._rnd.choice((0, 0, 10))
                self.failures += 1
                raise failure(code, path)
        if self.slowness_s and name == "sync":
            self._clock.jump(self._rnd.random() * self.slowness_s)

    # Lives

    def kill(self, end):
        """Ends the present life at once; ``start`` lets the next one begin."""
        self._hold()
        if self.life is not None and not self.life.is_over:
            self.life.end = end
            self.life.die()

    async def stop(self):
        """Stops the node cleanly, unless a fault comes in between."""
        self._hold()
        if self.life is not None:
            self.life.stopping.set()
            await self._gone.wait()

    def _hold(self):
        if self._may_start.is_set():
            self._may_start = trio.Event()

    def start(self):
        """Lets the next node start."""
        self._may_start.set()

    async def up(self):
        """Waits until a node serves."""
        while not self.is_up:
            await self._up.wait()

    async def life_over(self):
        """Waits until the present life, if any, has ended."""
        if self.life is not None:
            await self._gone.wait()

    @property
    def is_up(self):
        return self.life is not None and self.life.node is not None and not self.life.is_over

    def died(self, life):
        """Breaks the connections of a process that has just died."""
        self.report.node_died(life.end.value)
        if life.end is End.POWER:
            self._network.machine_died(self.name)
        else:
            self._network.process_died(self.name)

    async def run(self):
        """Runs one life after the other, until it is cancelled."""
        while True:
            await self._may_start.wait()
            self._network.machine_up(self.name)
            life = self.life = Life(self)
            life.end = End.KILL
            self._gone = trio.Event()
            self.starts += 1
            try:
                await self._live(life)
                if not life.is_over:
                    life.is_over, life.end = True, End.STOP
            except BaseException as error:
                self._judge(life, error)
            self.check_undamaged()
            if life.node is not None:  # else it is unknown whether the start has taken the mark of a clean stop
                self.may_be_clean = life.stopping.is_set()
            self.life = None
            self._gone.set()
            if life.end is End.POWER:
                self.lost_power = True
                self.disk.cut_power(LOSE if self.loses_all else self._rnd)
                self.loses_all = False
            else:
                self.disk.kill()
            self.disk.torn_bytes = 0
            self.report.operation("node ends", life.end.value)
            await trio.sleep(RESTART_SECONDS * self._rnd.random())

    async def _live(self, life):
        self.disk.before = self._before
        host = Host(
            clock=self.node_clock,
            randomness=SeededRandomness(self._rnd),
            disk=DiskOfLife(self.disk, life),
            network=self._network.of(self.name),
            workers=SimulatedWorkers(life, self._rnd),
            owns_process=False,
        )
        with life.scope:
            members = self._lists.get(self.disk, self.config.members)
            async with open_node(dataclasses.replace(self.config, members=members), host) as node:
                life.node = node
                self._on_start(node)
                self.starts, self.lost_power = 0, False
                up, self._up = self._up, trio.Event()
                up.set()
                await life.stopping.wait()
                node.check()

    def _judge(self, life, error):
        """Accepts the error of a death, or of a faulty disk at the start. Raises any other error: it is a bug."""
        errors = list(leaves(error))
        if life.is_over and all(isinstance(e, Crashed | trio.Cancelled | OSError | TailraceError) for e in errors):
            if any(isinstance(e, trio.Cancelled) for e in errors):
                raise error
            return
        if not self.has_faults or not all(isinstance(e, OSError | TailraceError) for e in errors):
            raise error
        life.is_over, life.end = True, End.KILL
        self._network.process_died(self.name)


def bugs_end_the_run():
    """Returns a context in which a node raises the bugs of its own that it would log and survive."""
    return mock.patch.object(logging.Logger, "exception", _not_swallowed)


def _not_swallowed(log, message, *args, **keywords):
    error = sys.exc_info()[1]
    assert error is not None
    raise error


def leaves(error):
    """Yields the errors of a group and of the groups in it, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def _disk():
    """Returns an empty disk, of which some reads miss the system's memory: both ways of a read are reached."""
    disk = MemoryDisk()
    disk.misses_every = MISSES_EVERY
    return disk
