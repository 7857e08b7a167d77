"""Who publishes: a driver with its tasks, as a streaming job has them. Its batches are each to be there once.

    a batch's keys are decided once ──> tasks stage them, some of them twice ──> publish, until the answer is known
          ^                                                                          │
          └──── the driver dies at any moment, or after the answer: the same batch, cut into other stages

What the driver keeps over its deaths is what a checkpoint has: which batch is under way. Its chance is its own, so that
a run without a sink is the same run as ever.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from typing import NamedTuple
from unittest import mock

import trio
from tests.processes.violation import Violation

from tailrace import BatchBehind, Retryable, UnknownStage
from tailrace.errors import TailraceError
from tailrace_server.node import node
from tailrace_server.publishing import cutting, joining, publisher, stages
from tailrace_server.stream import partition_stream
from tailrace_server.upkeep import flushed_segment

from .. import machine
from ..checks.batches import VALUE_PREFIX, Share
from ..machine import End
from .process import FEED, PATIENT_S, Process

# Of a batch: few blocks are joined to one, so that runs have several; and what a segment and a snapshot take of them.
JOINED_BYTES = 100
SEGMENT_BYTES = 1_500
SNAPSHOT_BYTES = 600
# Of a part; no key of a batch has more, as it has at most so many rows. And of a stage, what is sorted at a time.
PART_BYTES = 1_000
ROWS_OF_KEY_MAX = 3
READ_BYTES = 400
# After so long an unsealed stage has lost its writer; how often is looked for what nobody publishes.
IDLE_SECONDS = 3.0
EXPIRE_SECONDS = 1.0
# Until the driver gives a batch up, or is cut off: it takes about so long.
BATCH_SECONDS = 0.05


def has_sink(seed):
    """Whether a run has one: every other one, since it takes its time."""
    return random.Random(f"{seed} sinks").random() < 0.5


def has_parts(seed):
    """Whether the batches of a run come in parts: every other one again."""
    return random.Random(f"{seed} parts").random() < 0.5


@contextlib.contextmanager
def small_sizes(*, in_parts):
    """What is written for batches of gigabytes is in force for a few rows in the body."""
    storage = dataclasses.replace(machine.STORAGE, publish_bytes_max=PART_BYTES) if in_parts else machine.STORAGE
    with (
        mock.patch.object(machine, "STORAGE", storage),
        mock.patch.object(publisher, "STEP_S", 0.0 if in_parts else publisher.STEP_S),
        mock.patch.object(cutting, "READ_BYTES", READ_BYTES),
        mock.patch.object(joining, "JOINED_BYTES_MAX", JOINED_BYTES),
        mock.patch.object(flushed_segment, "SEGMENT_BYTES_MAX", SEGMENT_BYTES),
        mock.patch.object(partition_stream, "SNAPSHOT_BYTES_MAX", SNAPSHOT_BYTES),
        mock.patch.object(stages, "IDLE_S_MAX", IDLE_SECONDS),
        mock.patch.object(node, "_EXPIRE_SECONDS", EXPIRE_SECONDS),
    ):
        yield


class StagedPart(NamedTuple):
    """What a task has staged: the sealed stage, when that was, and its rows, (key, value)."""

    stage: object
    sealed_at: float
    failures: int  # of the node's disk by then
    rows: tuple


class Sink(Process):
    """See the module. It ends with a batch that is there, once it is told that all is over.

    What it publishes to, and who knows the truth of that, is up to the classes that are made of it.
    """

    feed_name = FEED

    def __init__(self, world, name):
        super().__init__(world, name)
        self._number = -1  # of the present batch
        self._keys = ()  # its rows', in their order
        self._is_answered = False  # somebody was told that it is published
        self._checkpoint = 0  # the origin of its number
        self._has_new_checkpoint = False  # which is not used yet
        self._stages = 0  # so far, which makes values unique
        self._done = trio.Event()
        self.until = self._done
        self.answers = 0  # to its publishes
        self.asking_for = ()  # the partitions of what it has no answer to yet
        self.again_chance = 0.3  # that a batch is published that is there
        self.crash_chance = 0.15  # that a node dies within a publish
        self.troubles = ("none", "none", "death", "cut")  # what the driver may have within a batch
        self.patience_s = (0.3, 3.0, PATIENT_S)  # how long it waits for an answer

    def be_undisturbed(self):
        """From now on each batch is published once, by a driver that lives and waits for the answer."""
        self.crash_chance = self.again_chance = 0.0
        self.troubles, self.patience_s = ("none",), (PATIENT_S,)
        self.kill(0.01)

    @property
    def number(self):
        """Of the present batch."""
        return self._number

    @property
    def _batch(self):
        return self.name, self._number

    async def session(self):
        with contextlib.suppress(Retryable):
            async with self.connect(retry_for=self.random.choice(self.patience_s), connect_timeout=5.0) as client:
                feed = client.feed(self.feed_name)
                while not self._done.is_set():
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._have_trouble)
                        await self._run_batch(feed)
                        nursery.cancel_scope.cancel()
                    await self.pause(self.random.random() * 0.6)
        await trio.sleep(0.1)

    async def _have_trouble(self):
        """The driver dies within the batch, or is cut off."""
        await trio.sleep(self.random.random() * BATCH_SECONDS)
        if self.world.is_over.is_set():
            return
        match self.random.choice(self.troubles):
            case "death":
                self.world.report.fault("driver died")
                self.kill(self.random.choice((0.05, 1.0)) * self.random.random())
            case "cut":
                self.world.report.fault("driver cut off")
                await self._be_cut_off()

    def _have_node_crash(self):
        """At a call of its disk soon, with what is published next."""
        end = self.random.choice((End.KILL, End.POWER))
        self.world.report.fault(f"{end.value} within a publish")
        self._machines()[0].crash_at_call(self.random.randrange(12), end)

    async def _be_cut_off(self):
        network, nodes = self.world.network, [machine.name for machine in self._machines()]
        for node_name in nodes:
            network.cut(self.name, node_name)
        try:
            await trio.sleep(self.random.choice((0.05, 1.0)) * self.random.random())
        finally:
            for node_name in nodes:
                network.heal(self.name, node_name)

    async def _run_batch(self, feed):
        """The batch that is under way, or the next one; as often as it takes, and now and then once more."""
        if not self._keys:
            self._number += 1
            self._is_answered = False
            self._keys = self._chosen_keys()
            if self._number and self.random.random() < 0.1:
                self._checkpoint += 1
                self._has_new_checkpoint = True
        while not await self._try_batch(feed):
            self.world.report.operation("batch staged anew")
        if self.random.random() < self.again_chance:  # what was told was not noted: a restarted driver has to ask again
            await self.pause(self.random.choice((0, 1.0, 5.0)) * self.random.random())
            return
        self._keys = ()
        if self.world.is_over.is_set():
            await self._orphans_expired()
            self._done.set()

    def _chosen_keys(self):
        keys = self._keys_to_write()
        if self.world.in_parts:
            keys = list(keys) * ROWS_OF_KEY_MAX
            return tuple(self.random.sample(keys, min(self.random.choice((3, 16, 48)), len(keys))))
        return tuple(self.random.choice(keys) for _ in range(self.random.choice((1, 3, 8, 16))))

    async def _try_batch(self, feed):
        """Stages the batch and publishes it; False where a stage was lost meanwhile."""
        parts = [part for keys in self._tasks() for part in await self._run_task(feed, keys)]
        if self._has_new_checkpoint and not await self._learn_number(feed, parts):
            return False
        shares = self._ask_for(parts)
        self.asking_for = tuple(sorted(shares))
        if self.random.random() < self.crash_chance and not self.world.is_over.is_set():
            self._have_node_crash()
        published = await self._publish(feed, parts, self._number)
        self.asking_for = ()
        if published is None:
            return False
        if set(published.written) | set(published.skipped) != set(shares):
            raise Violation(f"{self._batch} has rows for {sorted(shares)}, the answer is {published}")
        if self._is_answered and published.written and not self._may_have_lost():
            raise Violation(f"{self._batch} was published, and is again: {published}")
        self.world.report.operation("batch published again" if self._is_answered else "batch published", self._number)
        self._told(sorted(shares), published.written)
        self._is_answered = True
        self.answers += 1
        return True

    # Tasks

    def _tasks(self):
        """The batch's keys, cut and ordered in some way."""
        keys = list(self._keys)
        if self.random.random() < 0.3:
            self.random.shuffle(keys)
        cuts = sorted(self.random.randint(0, len(keys)) for _ in range(self.random.choice((0, 1, 2))))
        bounds = [0, *cuts, len(keys)]
        return [keys[begin:end] for begin, end in itertools.pairwise(bounds) if begin < end]

    async def _run_task(self, feed, keys):
        """The part that counts; now and then there is another one, which nobody publishes."""
        if self.random.random() < 0.2:
            self.world.report.operation("stage that nobody publishes")
            await self._stage(feed, keys, is_sealed=self.random.random() < 0.5)
        while True:
            part = await self._stage(feed, keys)
            if part is not None:
                return [part]
            await trio.sleep(0.05 * self.random.random())

    async def _stage(self, feed, keys, *, is_sealed=True):
        """None where the stage was lost, or could not be made durable."""
        self._stages += 1
        rows = self._rows(keys)
        try:
            async with feed.stage(batch_rows=self.random.choice((1, 2, 100))) as stage:
                for key, value in rows:
                    await (stage.delete(key) if value is None else stage.put(key, value))
                if not is_sealed:
                    return None
                sealed = await stage.seal()
        except TailraceError as error:
            self.world.report.operation("stage lost", type(error).__name__)
            return None
        self.world.report.operation("stage sealed")
        return StagedPart(sealed, trio.current_time(), self._failures(), rows)

    def _rows(self, keys):
        """Of a stage: what goes to one partition begins with a put, by which all of it can be found."""
        begun, rows = set(), []
        for number, key in enumerate(keys):
            partition = self._partition_of(key)
            deleted = partition in begun and not self.world.in_parts and self.random.random() < 0.2
            begun.add(partition)
            name = b"%s %d %d %d " % (self.name.encode(), self._number, self._stages, number)
            size = self.random.choice((0, 10, 50, 50) if self.world.in_parts else (0, 10, 50, 50, 200))
            rows.append((key, None if deleted else VALUE_PREFIX + name + self.random.randbytes(size)))
        return tuple(rows)

    # The publish

    def _ask_for(self, parts):
        """From now on these rows may be there; {partition: Share}."""
        rows = {}
        for part in parts:
            for key, value in part.rows:
                rows.setdefault(self._partition_of(key), []).append((key, value))
        shares = {partition: Share(self._batch, tuple(found)) for partition, found in rows.items()}
        self._about_to_ask(shares)
        return shares

    async def _learn_number(self, feed, parts):
        """A new checkpoint numbers its batches from 0 again, and is told where it has to begin."""
        try:
            published = await self._publish(feed, parts, 0)
        except BatchBehind as error:
            if error.first_batch != self._number and not self._may_have_lost():
                raise Violation(f"{self._batch} is the next one, and {error.first_batch} is said to be") from error
            self.world.report.operation("batch of another checkpoint refused", self._number)
            self._has_new_checkpoint = False
            return True
        if published is not None and not self._may_have_lost():
            raise Violation(f"batch 0 of another checkpoint was published as {published}, before {self._batch}")
        return False

    async def _publish(self, feed, parts, number):
        """Asks until the answer is known; None where a stage is gone, as it may be."""
        while True:
            try:
                with self.world.damage():
                    # Each try has values of its own, by which it is found: compared, they would be other rows.
                    origin, stages = f"checkpoint {self._checkpoint}", [part.stage for part in parts]
                    return await feed.publish(self.name, number, stages, origin=origin, compare=False)
            except UnknownStage as error:
                self._check_may_be_gone(parts, error)
                return None
            except Retryable as error:
                self.world.report.operation("publish without an answer", type(error).__name__)
            await trio.sleep(0.1 * self.random.random())

    # The world

    def _machines(self):
        """Those that it publishes to, the leader first."""
        raise NotImplementedError

    def _partition_of(self, key):
        raise NotImplementedError

    def _keys_to_write(self):
        raise NotImplementedError

    def _failures(self):
        """Of calls of the disks, so far."""
        return sum(machine.failures for machine in self._machines())

    def _may_have_lost(self):
        """Whether what was answered may be lost."""
        return False

    def _about_to_ask(self, shares):
        """From now on these shares may be there."""
        raise NotImplementedError

    def _told(self, partitions, written):
        """The batch is in all of ``partitions``; ``written``: by partition, where it came to stand."""
        raise NotImplementedError

    def _check_may_be_gone(self, parts, error):
        """A sealed stage is not there."""
        raise NotImplementedError

    async def _orphans_expired(self):
        """In the end: until nobody has a stage any more."""


class SinkProcess(Sink):
    """Of a single node."""

    def _machines(self):
        return [self.world.machine]

    def _partition_of(self, key):
        return self.world.truth.history.partition_of(key)

    def _keys_to_write(self):
        return self.world.keys_in_use if self.random.random() < 0.7 else self.world.keys

    def _about_to_ask(self, shares):
        self.world.truth.asked_to_publish(shares)

    def _told(self, partitions, written):
        self.world.truth.published(self._batch, partitions, written)

    def _check_may_be_gone(self, parts, error):
        """A sealed stage is there until it is old, unless its disk could not be read."""
        world = self.world
        oldest = min(part.sealed_at for part in parts)
        is_old = trio.current_time() - oldest >= world.machine.config.storage.stage_age_s
        has_failed = any(part.failures != self._failures() for part in parts)
        # An age is told by the wall clock, give or take an hour; here it is a few seconds.
        if not is_old and not has_failed and not world.report.faults["wall clock set"]:
            raise Violation(f"{self._batch}: what was sealed is gone: {error}") from error

    async def _orphans_expired(self):
        """Until the node has no stage any more. Where its wall clock was set nobody can say how long that takes."""
        world = self.world
        if not world.report.faults["wall clock set"]:
            while not world.machine.is_up or world.machine.life.node.stages.statistics()[:2] != (0, 0):  # noqa: ASYNC110
                await trio.sleep(EXPIRE_SECONDS)
