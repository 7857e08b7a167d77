"""Long lives of a node: whatever clients, the clock, the disk and the power do, in an order that a seed decides.

Faults last for some calls: the disk is full, or refuses some kinds of calls with EIO (an fsync that fails takes what it
was for with it). Segments rot for good: their partition may answer with an error from then on, but never wrongly.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import random

import trio
from tests.memory_disk import MemoryDisk, failure

from tailrace.errors import TailraceError
from tailrace.model import Level
from tailrace_server.journal.next_file import SPARE_DESCRIPTORS
from tailrace_server.segment import Segment, SegmentDamaged

from .checks import check, check_running
from .crashes import tear
from .engine import DAY, STORAGE, Engine, FeedSpec
from .ledger import partitions_of

SPECS = (
    FeedSpec("compact", partitions=2, tombstone_age_s=500.0),
    FeedSpec("aged", retention="history", history_age_s=900.0),
    FeedSpec("sized", retention="history", history_bytes=15_000),
)
FAILING = ("write_at", "sync", "rename", "sync_directory", "read_at", "remove", "create", "open", "truncate")
# What the journal has open, and keeps.
JOURNAL_FILES = 1 + SPARE_DESCRIPTORS
# What clients, the node and time do, by how often.
QUIET = {"write": 30, "sync": 10, "tend": 4, "flush": 3, "fold": 2, "merge": 1, "trim": 1, "wait": 3, "consume": 4}
LOUD = {"crash": 4, "refuse": 2, "fill": 1, "feed": 1, "jump": 1}


class Life:
    """Of a node; ``kinds`` says how often each step is taken."""

    def __init__(self, seed, kinds):
        self.rnd = random.Random(seed)
        storage = dataclasses.replace(STORAGE, segments_open_max=seed % 3)
        self.engine = Engine(MemoryDisk(), self.rnd.getrandbits(32), storage=storage)
        self.kinds = kinds
        self.is_faulty = False
        self.starts = 0

    async def live(self, steps):
        """So many steps, and a last crash; how many starts there were."""
        self.start()
        for spec in SPECS:
            self.engine.create(spec)
        await self.engine.sync()
        names, weights = list(self.kinds), list(self.kinds.values())
        for _ in range(steps):
            await getattr(self, self.rnd.choices(names, weights)[0])()
        self.crash_now()
        return self.starts

    # Starts and stops

    def start(self):
        """Starts the node, through faults if there are any, and checks it when they are over."""
        self.starts += 1
        if self.is_faulty:
            with contextlib.suppress(OSError, TailraceError):
                self.engine.open()
            self.stop_somehow()
            self.end_faults()
            self.starts += 1
        self.engine.open()
        check(self.engine)

    async def crash(self):
        self.crash_now()

    def crash_now(self):
        self.stop_somehow()
        self.start()

    def stop_somehow(self):
        engine, disk = self.engine, self.engine.disk
        how = self.rnd.random()
        if how < 0.2 and engine.node is not None and not self.is_faulty:
            engine.stop()
            disk.kill()
        elif how < 0.6:
            path = engine.journal_path
            if how < 0.3 and path in disk.names_now and not self.is_synced():
                tear(disk, path, self.rnd)
            disk.kill()
        else:
            disk.cut_power(self.rnd)

    def is_synced(self):
        journal = self.engine.node.storage.journal
        return journal.synced == journal.written

    # Clients

    @property
    def partition(self):
        """Any."""
        return self.rnd.choice(partitions_of(self.engine.node))

    def name_of(self, partition):
        return self.engine.feed_info(partition).name

    async def write(self):
        partition = self.partition
        keys = self.engine.keys_of(self.name_of(partition), partition.id, 8)
        chosen = self.rnd.choices(keys, k=self.rnd.randint(1, 4))
        rows = [b"-" + key if self.rnd.random() < 0.25 else key for key in chosen]
        with self.tolerance(partition):
            self.engine.write(
                self.name_of(partition), rows, number=partition.id, producer=self.rnd.randint(1, 3), value_bytes=30
            )

    async def sync(self):
        await self.engine.sync()

    async def consume(self):
        partition = self.partition
        told = self.engine.ledger.of(partition)
        if len(told.consumers) < 6:
            self.engine.ledger.consumer(partition, self.rnd.choice((Level.DISK, Level.DISK, Level.MEMORY)))
        with self.tolerance(partition):
            self.rnd.choice(told.consumers).read(self.engine.node, told, self.rnd.choice((None, 0, 1, 3)))

    async def feed(self):
        """A feed goes, or comes back."""
        engine = self.engine
        spec = self.rnd.choice(SPECS)
        with self.tolerance():
            there = {feed.info.name for feed in engine.node.feeds}
            if spec.name in there and len(there) > 1:
                engine.drop(spec.name)
            if self.rnd.random() < 0.7:
                engine.create(spec)

    # The node

    async def tend(self):
        await self.engine.tend()
        self.check_running()

    async def flush(self):
        partition = self.partition
        with self.tolerance(partition):
            await self.engine.node.storage.flusher.flush(partition)

    async def fold(self):
        partition = self.partition
        with self.tolerance(partition):
            await self.engine.fold(self.name_of(partition), partition.id)

    async def merge(self):
        """Merges, most steps of it right after answers that are sent meanwhile."""
        merger = self.engine.node.storage.flusher.merger

        async def answer():
            while True:
                await trio.lowlevel.checkpoint()
                merger.lulls.begins()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            await merger.merge(self.partition)
            nursery.cancel_scope.cancel()

    async def trim(self):
        partition = self.partition
        with self.tolerance(partition):
            await self.engine.trim_history(self.name_of(partition), partition.id)
        with self.tolerance():
            await self.engine.trim()

    async def wait(self):
        self.engine.clock.advance(self.rnd.choice((1, 20, 100, 400)))

    async def jump(self):
        self.engine.clock.jump(self.rnd.choice((-DAY, -10, 10, DAY, 400 * DAY)))

    # Faults

    async def refuse(self):
        """The disk refuses some kinds of calls, for a while."""
        names = set(self.rnd.sample(FAILING, self.rnd.randint(1, 3)))
        chance = self.rnd.choice((0.05, 0.3, 1.0))
        disk = self.engine.disk
        disk.torn_bytes = self.rnd.randint(0, 60)  # less than the smallest record

        def before(name, path):
            if name in names and self.rnd.random() < chance:
                raise failure(errno.EIO, path)

        disk.before = before
        await self.under_faults(self.rnd.randint(1, 30))

    async def fill(self):
        """The disk is full, for a while."""
        disk = self.engine.disk
        disk.size_bytes -= disk.free - self.rnd.randint(0, 6_000)
        await self.under_faults(self.rnd.randint(1, 20))

    async def starve(self):
        """Others take the descriptors, for a while: what needs one is tried again, and the journal does not fail."""
        disk = self.engine.disk
        for _ in range(self.rnd.randint(1, 4)):
            disk.files_max = max(disk.files, JOURNAL_FILES) + self.rnd.randint(0, 3)
            await self.under_faults(self.rnd.randint(1, 10), may_end=False)
            assert self.engine.node.storage.journal.failed is None
            assert not self.engine.node.storage.damages, (
                "a segment that cannot be opened for now is taken for a damaged one"
            )
        await self.under_faults(0)

    async def under_faults(self, calls, *, may_end=True):
        names = ("write", "write", "write", "sync", "sync", "tend", "flush", "fold", "trim", "merge", "consume", "feed")
        self.is_faulty = True
        for _ in range(calls):
            await getattr(self, self.rnd.choice(names))()
        if not may_end:
            return
        if self.rnd.random() < 0.5:
            self.crash_now()
        else:
            self.end_faults()
        if self.engine.node.storage.committer.failure or self.engine.node.storage.journal.failed:
            self.crash_now()

    def end_faults(self):
        self.is_faulty = False
        disk = self.engine.disk
        disk.before = None
        disk.torn_bytes = 0
        disk.size_bytes = 1 << 40
        disk.files_max = 1 << 20

    async def rot(self):
        """A bit of a segment flips."""
        partition = self.partition
        if not partition.chain.segments:
            return
        segment = self.rnd.choice(partition.chain.segments)
        self.engine.ledger.damaged.add((partition.feed_id, partition.id))
        disk = self.engine.disk
        begin = self.rnd.choice((0, segment.nbytes - 600))  # what opens a segment lies at its end
        disk.flip(segment.path, self.rnd.randrange(8 * begin, 8 * segment.nbytes))
        assert verify(disk, segment.path), f"the damage of {segment.path} is not found"

    def check_running(self):
        if not self.is_faulty:
            check_running(self.engine)

    @contextlib.contextmanager
    def tolerance(self, partition=None):
        """Errors are for faults, and for partitions that rot."""
        try:
            yield
        except (OSError, TailraceError):
            rots = partition is not None and (partition.feed_id, partition.id) in self.engine.ledger.damaged
            if not rots and not self.is_faulty:
                raise


def verify(disk, path):
    """What is wrong with a segment."""
    try:
        segment = Segment.open(disk, path)
    except SegmentDamaged as error:
        return [error]
    with contextlib.closing(segment):
        return segment.verify()


async def live(seed, steps, kinds):
    """A life; how many starts there were. What fails names the seed."""
    life = Life(seed, kinds)
    try:
        return await life.live(steps)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
