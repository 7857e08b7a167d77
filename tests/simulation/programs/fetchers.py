"""Programs that fetch copies of the feed again and again, onto a disk of their own, and read them."""

from __future__ import annotations

import dataclasses
import math

import trio
from tests.fake_host import InlineWorker
from tests.memory_disk import Crashed
from tests.processes.violation import Violation

import tailrace
from tailrace import Mutations, Retryable, Rollback, SnapshotEnd
from tailrace.errors import BadSegment, ProtocolError, StreamEnded, TailraceError, UnknownCheckpoint, UnknownFeed

from ..checks.fetched import CopyChecks
from .process import PATIENT_S, Process, host_of

# The longest time of a stream behind a copy. Its only node may have come to lead for good, and then it waits for ever.
STREAM_SECONDS_MAX = 10.0
# How long a call of the disk takes.
DISK_SECONDS = (0, 0, 0.001, 0.01)


class DiskWorker(InlineWorker):
    """A thread of a fetch. Each of its functions takes some time, and has no effect if the process dies before."""

    def __init__(self, disk, rnd):
        super().__init__("fetch")
        self._disk = disk
        self._random = rnd

    async def run(self, function, *args):
        with trio.CancelScope(shield=True):
            await trio.sleep(self._random.choice(DISK_SECONDS))
        self._disk.check()
        return function(*args)


class FetchingProcess(Process):
    """Fetches the feed into one directory, and checks the copy after each fetch, whatever became of it.

    Attributes:
        disk: The disk of its machine, a `ProgramDisk`.
        folder: The directory.
    """

    def __init__(self, world, name, state="leader", level="disk"):
        super().__init__(world, name)
        self.level = level
        self._state = state
        self.disk = world.disks.add(name)
        self.folder = f"/{name}/copy"
        self._faults = world.random_of(f"faults of {name}")
        self._power_cut = False
        self._checks = CopyChecks(world, self)

    def connect(self, url=None, **options):
        host = host_of(self.world, self.name, self.random, self._new_session)
        host = dataclasses.replace(host, worker=lambda name: DiskWorker(self.disk, self.random))
        return tailrace.connect(url or self.world.url, name=self.name, host=host, state=self._state, **options)

    def kill(self, paused_s, *, power=False):
        """Ends the program. ``power``: its machine loses what was not synced."""
        self._power_cut |= power
        self.disk.die()
        super().kill(paused_s)

    def crash_at_call(self, calls, *, power, where=""):
        """Ends the program before a changing call of its disk, after ``calls`` others with ``where`` in their path."""

        def crash(path):
            self.world.report.fault("fetch killed at a call of its disk", f"{self.name} {path}")
            self.disk.disk.torn_bytes = self._faults.choice((0, 0, 10, 300))
            self.kill(self._faults.random() * 0.5, power=power)
            raise Crashed

        self.disk.after_calls(calls, crash, where)

    async def session(self):
        self._boot()
        url = self.world.url
        if self._state != "leader":
            url = self.world.url_of(self.random.choice(self.world.names))
        try:
            async with self.connect(url, retry_for=self.random.choice((0.5, 3.0)), connect_timeout=5.0) as client:
                feed = client.feed(self.world.feed_name)
                for _ in range(self.random.choice((1, 3, 10))):
                    await self._fetch(feed)
                    if self.world.is_over.is_set():
                        return
                    await self.pause(self.random.random() * self.random.choice((0.1, 1.0)))
        except* Crashed:  # the program is started again
            pass
        except* Retryable:
            await trio.sleep(0.1)

    def _boot(self):
        if self.disk.is_dead:
            self.disk.boot(self._faults if self._power_cut else None)
            self._power_cut = False
            self._checks.check_readable("after a death")

    async def end(self):
        """Fetches once more. Only a node that is not ready may refuse that."""
        self._boot()
        while True:
            async with self.connect(retry_for=PATIENT_S, connect_timeout=PATIENT_S) as client:
                if await self._fetch(client.feed(self.world.feed_name), is_last=True):
                    break
            await trio.sleep(0.1)
        self.world.report.operation("last fetch", self.name)

    async def _fetch(self, feed, *, is_last=False):
        """Fetches the feed, or some partitions. Returns whether the fetch has come to its end."""
        chosen = None
        if not is_last and self.random.random() < 0.2:
            numbers = range(self.world.plan.partitions)
            chosen = self.random.sample(numbers, self.random.randint(1, len(numbers)))
        seconds = math.inf if is_last or self.random.random() < 0.7 else self.random.choice((0.01, 0.1, 1.0))
        begun = self._checks.begin()
        outcome, fetched = "cancelled", None
        with trio.move_on_after(seconds):
            outcome, fetched = await self._try(feed, chosen, begun, is_last=is_last)
        self.disk.check()
        self.world.report.operation(f"fetch: {outcome}", self.name)
        if fetched is None:
            self._checks.check_readable(f"after a fetch: {outcome}")
            return False
        self._checks.check_fetched(fetched, begun)
        if self.random.random() < 0.3 and not is_last:
            with trio.move_on_after(STREAM_SECONDS_MAX):
                await self._go_on_by_stream(feed)
        return not any(partition.is_behind for partition in fetched.partitions.values())

    async def _try(self, feed, chosen, begun, *, is_last):
        """Returns the outcome of a fetch, and what was fetched; None: it has failed, and was allowed to."""
        try:
            return "done", await feed.fetch(self.folder, partitions=chosen, visibility=self.level)
        except Retryable as error:
            return type(error).__name__, None
        except (BadSegment, ProtocolError) as error:
            is_damaged = "is damaged at offset" in str(error) and self._checks.may_be_damaged
            allowed, error_ = is_damaged or self.world.network.harmed > begun.harmed, error
        except UnknownCheckpoint as error:
            allowed, error_ = not is_last, error
        except UnknownFeed as error:  # a node of a set that has not heard of it
            allowed, error_ = self.world.plan.is_set, error
        except OSError as error:
            disk = self.disk
            allowed, error_ = begun.was_full or disk.is_full or disk.failures > begun.failures, error
        except TailraceError as error:
            allowed, error_ = "is damaged at offset" in str(error) and self._checks.may_be_damaged, error
        except Exception as error:
            allowed, error_ = False, error
        if not allowed:
            raise Violation(f"{self.name}: a fetch has failed by {error_!r}") from error_
        return type(error_).__name__, None

    async def _go_on_by_stream(self, feed):
        """Consumes from the positions of the copy up to now, and checks the state that comes out."""
        reader, states = self._checks.read()
        rolled_back = set()
        try:
            async with feed.consume(reader.positions, until="now", visibility=self.level) as stream:
                async for event in stream:
                    if isinstance(event, Rollback):
                        rolled_back.add(event.partition)
                    elif isinstance(event, Mutations):
                        columns = zip(event.keys(), event.seqs(), event.values(), strict=True)
                        states.setdefault(event.partition, {}).update({key: row for key, *row in columns})
                    elif isinstance(event, SnapshotEnd) and event.partition not in rolled_back:
                        self._checks.check_state(event.partition, states.get(event.partition, {}), event.position)
        except (Retryable, StreamEnded) as error:
            self.world.report.operation("stream behind a copy that ended", f"{self.name} {type(error).__name__}")
            return
        self.world.report.operation("stream behind a copy", self.name)
