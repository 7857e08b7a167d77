"""Nodes that publish batches over a disk in memory, and what each crash of them leaves."""

from __future__ import annotations

import itertools
import random

import trio
from tests.fake_host import FakeClock, InlineWorkers, SeededRandomness
from tests.memory_disk import LOSE, READING
from tests.tailrace_server.publishing.blocks import block

from tailrace.errors import BatchChanged, TooLarge, UnknownStage
from tailrace.wire.stage_messages import Publish, StageSeal
from tailrace_server.config import Config, StorageConfig
from tailrace_server.node.start import recover
from tailrace_server.runtime.host import Host

DATA = "/data"
PARTITIONS = 2
# A flush after each batch, several files of the journal, and segments small enough to want a second one. A publish
# reads its stages.
STORAGE = StorageConfig(
    segment_bytes=1,
    journal_file_bytes_max=3_000,
    journal_bytes_max=6_000,
    reserve_bytes=0,
    free_bytes_min=0,
    stage_kept_bytes_max=0,
)


class World:
    """A node over a disk in memory, and what it has answered."""

    storage = STORAGE

    def __init__(self, disk, seed=1, data=DATA):
        self.disk = disk
        self.clock = FakeClock()
        self.answered = []
        rnd = random.Random(seed)
        self._stage_ids = rnd.randbytes
        host = Host(
            clock=self.clock,
            randomness=SeededRandomness(rnd),
            disk=disk,
            network=None,
            workers=InlineWorkers(disk),
        )
        disk.make_directory(data)
        self.node = recover(Config(data, storage=self.storage), host)

    @property
    def feed(self):
        return self.node.feeds.named("orders")

    async def create(self):
        self.node.feed_changes.create({"name": "orders", "feed_id": (b"f" * 16).hex(), "partitions": PARTITIONS})
        await self.node.storage.committer.commit()

    def stage(self, batch, part, parts):
        """A sealed stage with a part of a batch's rows, in blocks of one row."""
        places = itertools.product(range(part, 4, parts), range(PARTITIONS))
        return self.seal([block(number, PARTITIONS, rows=1, name=b"%d-%d-" % (batch, row)) for row, number in places])

    def seal(self, found):
        """A sealed stage of blocks."""
        id = self._stage_ids(16)
        for number, made in enumerate(found):
            self.node.stages.take(self.feed.info.feed_id, id, number, 0, made)
        open_stage = self.node.stages._open[id]
        seal = StageSeal(self.feed.info.feed_id, id, len(found), len(found), open_stage.sum.intdigest())
        begun = self.node.stages.begin_seal(seal)
        self.node.stages.sealed(begun, self.node.stages.directory.seal(begun))
        return id

    def request(self, batch, ids, digest=None):
        told = self.feed.info.feed_id, "job", "query", batch, tuple(ids), tuple(range(PARTITIONS))
        return Publish(*told, digest_of_batch(batch) if digest is None else digest)

    async def ask(self, batch, ids, **changes):
        """Asks the node to publish, and returns when it has published all."""
        await self.node.publisher.publish(self.request(batch, ids, **changes))

    async def publish(self, batch, ids, **changes):
        error = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.node.storage.committer.run)
            try:
                await self.ask(batch, ids, **changes)
            except (UnknownStage, BatchChanged, TooLarge) as refused:  # as themselves, not in a group
                error = refused
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error
        self.answered.append(batch)

    async def run_batch(self, batch, parts):
        await self.publish(batch, [self.stage(batch, part, parts) for part in range(parts)])

    def written(self, partition):
        """The keys of a partition in order, as often as they are there."""
        return list(itertools.chain.from_iterable(one.open_columns().keys() for one in self.blocks(partition)))

    def blocks(self, partition):
        """The blocks of a partition, in order."""
        blocks = [one for segment in partition.chain.segments for one in segment.read_blocks(0, 1 << 40)[0]]
        return [*blocks, *partition.tree.blocks_after(partition.flushed_seq)]


def digest_of_batch(batch):
    """Any number that is the same for each try."""
    return (1 << 63) + batch


def batch_of(key):
    return int(key.split(b"-")[0])


async def life(world, batches):
    """Creates the feed, and publishes batches of one or two stages. A flush comes after each."""
    await world.create()
    for batch in range(batches):
        await world.run_batch(batch, parts=1 + batch % 2)
        await world.node.storage.flusher.pass_once()
        world.clock.advance(1.0)


async def crash_everywhere(world, batches, is_of_interest=lambda path: True):
    """Returns each crash before a call that changes the disk: what it leaves, the batches answered, and the call."""
    found = []

    def before(name, path):
        if name not in READING and is_of_interest(path):
            found.append((world.disk.fork(), list(world.answered), f"{name} {path}"))

    world.disk.before = before
    await life(world, batches)
    world.disk.before = None
    found.append((world.disk.fork(), list(world.answered), "the end"))
    return _endings(found)


def _endings(found):
    """Each crash with each of its ends."""
    rnd = random.Random(7)
    for left, answered, call in found:
        for ending in ("killed", "power cut, all lost", "power cut, some lost"):
            after = left.fork()
            if ending == "killed":
                after.kill()
            else:
                after.cut_power(LOSE if "all" in ending else rnd)
            yield after, answered, f"{ending} before {call}"


async def check_all(crashes, check):
    """Returns what ``check`` says of each crash. An error names its crash."""
    said = []
    for disk, answered, how in crashes:
        try:
            said.append(await check(disk, answered))
        except BaseException as error:
            error.add_note(how)
            raise
    return said


async def is_noticed(crashes, check):
    """Returns whether ``check`` fails for one of the crashes."""
    for disk, answered, _ in crashes:
        try:
            await check(disk, answered)
        except AssertionError:
            return True
    return False


async def run_the_rest(world, answered, batches):
    """Runs the job again from what it does not know to be done, as Spark does: the batch that was begun, or the last.

    It has other pieces than before. In the end each row is there once.
    """
    lasts = [partition.sinks.find("job") for partition in world.feed.partitions]
    has_begun = any(last is not None and last.batch >= len(answered) for last in lasts)
    for batch in range(max(len(answered) - (not has_begun), 0), batches):
        await world.run_batch(batch, parts=2 - batch % 2)
    world.node.check()
    for partition in world.feed.partitions:
        keys = world.written(partition)
        assert sorted(keys) == sorted(set(keys)), "rows are there twice"
        assert len(keys) == 4 * batches, "rows are missing"
