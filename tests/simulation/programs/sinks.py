"""A sink: a driver with its tasks, as a streaming job has them. Each of its batches has to be there once.

    a batch's keys are decided once ──> tasks stage them, some of them twice ──> publish, until the answer is known
          ^                                                                          │
          └──── the driver dies at any moment, or after the answer: the same batch, cut into other stages

The driver keeps over its deaths the number of the batch that is under way, as a checkpoint does.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import NamedTuple

import trio
from tests.processes.violation import Violation

from tailrace import BatchBehind, Forbidden, Retryable, UnknownStage
from tailrace.errors import TailraceError

from ..checks.batches import VALUE_PREFIX, Share
from ..machine import End
from .process import PATIENT_S, Process

# No key of a batch has more rows, and a batch of parts has several keys.
ROWS_OF_KEY_MAX = 3
# A trouble comes within this time after a batch has begun, which takes about as long.
BATCH_SECONDS = 0.05


class StagedPart(NamedTuple):
    """The sealed stage of a task.

    Attributes:
        sealed_at: The simulated time of its sealing.
        failures: How many calls of the disks had failed by then.
        rows: (key, value) of each row.
    """

    stage: object
    sealed_at: float
    failures: int
    rows: tuple


class Sink(Process):
    """A driver with its tasks. When the faults are over it ends with its next batch.

    Attributes:
        answers: How many of its publishes were answered.
        asking_for: The partitions of the publish that has no answer yet.
        again_chance: How often it publishes a batch that was answered once more.
        crash_chance: How often a node dies within a publish.
        troubles: The troubles that the driver may have within a batch, one of which is drawn.
        patience_s: How long it waits for an answer; one is drawn for each session.
        waiting: The ids of the sealed stages whose publish waits for `let_publish`.
    """

    def __init__(self, world, name, keys_of, stray_chance=0.0):
        """``keys_of``: the group of its keys. ``stray_chance``: how often it writes keys that are not in use."""
        super().__init__(world, name)
        self._keys_of = keys_of
        self._stray_chance = stray_chance
        self._number = -1  # of the batch that is under way
        self._keys = ()  # of the rows of that batch, in their order
        self._is_answered = False  # that batch was answered as published
        self._checkpoint = 0  # the origin of the batch numbers
        self._has_new_checkpoint = False  # which is not used yet
        self._stages = 0  # makes values unique
        self._done = trio.Event()
        self.until = self._done
        self.answers = 0
        self.asking_for = ()
        self.again_chance = 0.3
        self.crash_chance = 0.15
        self.troubles = ("none", "none", "death", "cut")
        self.patience_s = (0.3, 3.0, PATIENT_S)
        self.waiting = ()
        self._may_publish = trio.Event()
        self._may_publish.set()

    def be_undisturbed(self):
        """Publishes each batch once from now on: the driver lives, and waits for each answer."""
        self.crash_chance = self.again_chance = 0.0
        self.troubles, self.patience_s = ("none",), (PATIENT_S,)
        self.kill(0.01)

    def hold_publishes(self):
        """Lets the driver wait from now on before it publishes, until `let_publish`."""
        self._may_publish = trio.Event()

    def let_publish(self):
        """Ends `hold_publishes`."""
        self._may_publish.set()

    @property
    def number(self):
        """The number of the batch that is under way."""
        return self._number

    @property
    def _batch(self):
        return self.name, self._number

    async def session(self):
        with contextlib.suppress(Retryable):
            async with self.connect(retry_for=self.random.choice(self.patience_s), connect_timeout=5.0) as client:
                feed = client.feed(self.world.feed_name)
                while not self._done.is_set():
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._have_trouble)
                        await self._run_batch(feed)
                        nursery.cancel_scope.cancel()
                    await self.pause(self.random.random() * 0.6)
        await trio.sleep(0.1)

    async def _have_trouble(self):
        """Lets the driver die within the batch, or be cut off, or neither."""
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
        """Lets the first node die at one of the next calls of its disk, within a publish."""
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
        """Publishes the batch that is under way, or the next one, as often as it takes, and now and then once more."""
        if not self._keys:
            self._number += 1
            self._is_answered = False
            self._keys = self._chosen_keys()
            if self._number and self.random.random() < 0.1:
                self._checkpoint += 1
                self._has_new_checkpoint = True
        while not await self._try_batch(feed):
            self.world.report.operation("batch staged anew")
        if self.random.random() < self.again_chance:  # the driver died before it noted the answer, and publishes again
            await self.pause(self.random.choice((0, 1.0, 5.0)) * self.random.random())
            return
        self._keys = ()
        if self.world.is_over.is_set():
            await self.world.checks.stages_expired()
            self._done.set()

    def _chosen_keys(self):
        keys = self._keys_to_write()
        if self.world.plan.in_parts:
            keys = list(keys) * ROWS_OF_KEY_MAX
            return tuple(self.random.sample(keys, min(self.random.choice((3, 16, 48)), len(keys))))
        return tuple(self.random.choice(keys) for _ in range(self.random.choice((1, 3, 8, 16))))

    async def _try_batch(self, feed):
        """Stages the batch and publishes it. Returns False if a stage was lost meanwhile."""
        parts = [part for keys in self._tasks() for part in await self._run_task(feed, keys)]
        self.waiting = tuple(part.stage.stage_id for part in parts)
        await self._may_publish.wait()
        self.waiting = ()
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
        if self._is_answered and published.written and not self.world.checks.may_lose_batches:
            raise Violation(f"{self._batch} was published, and is again: {published}")
        self.world.report.operation("batch published again" if self._is_answered else "batch published", self._number)
        self.world.checks.publish_answered(self._batch, sorted(shares), published.written)
        self._is_answered = True
        self.answers += 1
        return True

    # Tasks

    def _tasks(self):
        """Returns the batch's keys, shuffled now and then, and cut for one to three tasks."""
        keys = list(self._keys)
        if self.random.random() < 0.3:
            self.random.shuffle(keys)
        cuts = sorted(self.random.randint(0, len(keys)) for _ in range(self.random.choice((0, 1, 2))))
        bounds = [0, *cuts, len(keys)]
        return [keys[begin:end] for begin, end in itertools.pairwise(bounds) if begin < end]

    async def _run_task(self, feed, keys):
        """Returns the sealed stage of a task. Now and then a second stage is left unpublished."""
        if self.random.random() < 0.2:
            self.world.report.operation("stage that is not published")
            await self._stage(feed, keys, is_sealed=self.random.random() < 0.5)
        while True:
            part = await self._stage(feed, keys)
            if part is not None:
                return [part]
            await trio.sleep(0.05 * self.random.random())

    async def _stage(self, feed, keys, *, is_sealed=True):
        """Returns the stage; None: it was lost, is not sealed, or could not be made durable."""
        self._stages += 1
        rows = self._rows(keys)
        try:
            async with feed.stage(batch_rows=self.random.choice((1, 2, 100))) as stage:
                for key, value in rows:
                    await (stage.delete(key) if value is None else stage.put(key, value))
                if not is_sealed:
                    return None
                sealed = await stage.seal("quorum" if self.world.plan.seals_at_quorum else "disk")
        except TailraceError as error:
            self.world.report.operation("stage lost", type(error).__name__)
            return None
        self.world.report.operation("stage sealed at quorum" if self.world.plan.seals_at_quorum else "stage sealed")
        return StagedPart(sealed, trio.current_time(), self._failures(), rows)

    def _rows(self, keys):
        """Returns the rows of a stage. The first row for each partition is a put: its value identifies the share."""
        begun, rows = set(), []
        for number, key in enumerate(keys):
            partition = self.world.partition_of(key)
            deleted = partition in begun and not self.world.plan.in_parts and self.random.random() < 0.2
            begun.add(partition)
            name = b"%s %d %d %d " % (self.name.encode(), self._number, self._stages, number)
            size = self.random.choice((0, 10, 50, 50) if self.world.plan.in_parts else (0, 10, 50, 50, 200))
            rows.append((key, None if deleted else VALUE_PREFIX + name + self.random.randbytes(size)))
        return tuple(rows)

    # The publish

    def _ask_for(self, parts):
        """Tells the checks that these rows may be there from now on. Returns {partition: Share}."""
        rows = {}
        for part in parts:
            for key, value in part.rows:
                rows.setdefault(self.world.partition_of(key), []).append((key, value))
        shares = {partition: Share(self._batch, tuple(found)) for partition, found in rows.items()}
        self.world.checks.publish_asked(shares)
        return shares

    async def _learn_number(self, feed, parts):
        """Publishes batch 0 of a new checkpoint, and checks the number from which the node tells it to go on."""
        try:
            published = await self._publish(feed, parts, 0)
        except BatchBehind as error:
            if error.first_batch != self._number and not self.world.checks.may_lose_batches:
                raise Violation(f"{self._batch} is the next one, and {error.first_batch} is said to be") from error
            self.world.report.operation("batch of another checkpoint refused", self._number)
            self._has_new_checkpoint = False
            return True
        if published is not None and not self.world.checks.may_lose_batches:
            raise Violation(f"batch 0 of another checkpoint was published as {published}, before {self._batch}")
        return False

    async def _publish(self, feed, parts, number):
        """Publishes until there is an answer, and returns it; None: a stage is gone, as it may be."""
        while True:
            try:
                with self.world.damage():
                    # Each try has values of its own: if the node compared them, they would be other rows.
                    origin, stages = f"checkpoint {self._checkpoint}", [part.stage for part in parts]
                    return await feed.publish(self.name, number, stages, origin=origin, compare=False)
            except UnknownStage as error:
                self.world.checks.stage_gone(self._batch, parts, self._failures(), error)
                return None
            except Forbidden as error:
                if self.world.plan.way != "switch":
                    raise
                self.world.report.operation("publish refused", error)
                return None
            except Retryable as error:
                self.world.report.operation("publish without an answer", type(error).__name__)
            await trio.sleep(0.1 * self.random.random())

    # The nodes

    def _machines(self):
        """Returns the machines that it publishes to, that of the leader first."""
        return sorted(self.world.machines, key=lambda machine: not self.world.leads(machine))

    def _keys_to_write(self):
        keys = self.world.keys
        is_in_use = self._stray_chance == 0.0 or self.random.random() < 1.0 - self._stray_chance
        return (keys.in_use if is_in_use else keys.all)[self._keys_of]

    def _failures(self):
        """Returns how many calls of the disks have failed until now."""
        return sum(machine.failures for machine in self.world.machines)
