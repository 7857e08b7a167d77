"""A whole node's storage over a disk in memory, without sockets and tasks, driven a step at a time.

    Engine.write ── Partition.take ──> journal, tree        Engine.sync ── Committer.commit ──> the ledger is told
    Engine.tend  ── Flusher.pass_once, Compactor            Engine.stop, Engine.open ── Node.stop, recover

Threads and processes are run on the spot (``InlineWorkers``), so that a step makes the same calls each time, and the
disk may be copied, or fail, before any of them. What was answered to anybody stands in the ledger (ledger.py).
"""

from __future__ import annotations

import contextlib
import random
from typing import NamedTuple

from tests.fake_host import FakeClock, InlineWorkers, SeededRandomness

from tailrace.block import encode_block
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace_server.config import Config, StorageConfig
from tailrace_server.directory.uptime_file import store_uptime
from tailrace_server.journal import lock_directory
from tailrace_server.journal.format import file_name
from tailrace_server.node.start import recover
from tailrace_server.partition.writing import write_block
from tailrace_server.runtime.host import Host

from .ledger import Ledger

DATA = "/data"
DAY = 86_400.0
STORAGE = StorageConfig(
    memory_bytes_max=200_000,
    segment_bytes=2_000,
    flush_age_s=60.0,
    journal_file_bytes_max=2_500,
    journal_bytes_max=10_000,
    reserve_bytes=24_000,  # a flush, the manifests, and what a start copies of the journal
    free_bytes_min=0,
    compaction_rate=0,
    check_rate=0,
)


class FeedSpec(NamedTuple):
    """What a feed is created with."""

    name: str
    retention: str = "compact"
    partitions: int = 1
    tombstone_age_s: float = 3 * DAY
    history_age_s: float | None = None
    history_bytes: int | None = None


class Engine:
    """A node on ``disk``; ``seed`` decides its ids and all else that is left to chance here."""

    def __init__(self, disk, seed=0, *, ledger=None, clock=None, storage=STORAGE):
        self.disk = disk
        self.rnd = random.Random(seed)
        self.ledger = Ledger() if ledger is None else ledger
        self.clock = FakeClock() if clock is None else clock
        self.ledger.clock = self.clock
        self.storage = storage
        self.node = None
        self.is_stopped = False

    def open(self):
        """Starts the node; the one before is gone, and what it had open with it."""
        self.disk.make_directory(DATA)
        self._lock = lock_directory(self.disk, DATA)
        host = Host(
            clock=self.clock,
            randomness=SeededRandomness(self.rnd),
            disk=self.disk,
            network=None,
            workers=InlineWorkers(self.disk),
        )
        self.ledger.starting()
        self.node = recover(Config(DATA, storage=self.storage), host)
        self.ledger.started(self.node)
        self.is_stopped = False
        return self

    # What clients ask for

    def feed(self, name):
        return self.node.feeds.named(name)

    def partition(self, name, number=0):
        return self.feed(name).partitions[number]

    def create(self, spec):
        """Asks for a feed; ``sync`` answers."""
        value = {**spec._asdict(), "feed_id": self.rnd.randbytes(16).hex()}
        self.ledger.asked.add(bytes.fromhex(value["feed_id"]))
        feed = self.node.feed_changes.create(value)
        told = self.ledger.create(feed.info, feed.partitions[0].log.branch)
        self._when_durable(told.created)
        return feed

    def drop(self, name):
        """Asks for the end of a feed; ``sync`` answers."""
        told = self.ledger.feeds[self.feed(name).info.feed_id]
        told.is_drop_asked = True
        self.node.feed_changes.drop(told.info.feed_id)
        self._when_durable(told.dropped)

    def write(self, name, keys, *, number=0, producer=1, value_bytes=40):
        """Asks for rows of one partition, deletions where a key comes with ``-`` before it; ``sync`` answers."""
        if self.node.storage.committer.failure is not None:
            raise self.node.storage.committer.failure
        partition = self.partition(name, number)
        told = self.ledger.of(partition)
        names = [key.lstrip(b"-") for key in keys]
        values = [
            None if key.startswith(b"-") else b"%d:" % (partition.high_seq + row) + self.rnd.randbytes(value_bytes)
            for row, key in enumerate(keys, 1)
        ]
        block = encode_block(
            names,
            values,
            partition=number,
            producer_id=told.producer_id(producer),
            producer_seq=told.next_number(producer),
            compress=False,
        )
        taken = write_block(
            partition, block, self.node.storage.journal, now_us=self.clock.wall_us(), now=self.clock.monotonic()
        )
        assert taken.fresh, "a new block is taken for one that is sent again"
        told.given(producer, taken.versions, names, values, partition.last_timestamp)
        self.node.storage.committer.note(partition)
        self.node.storage.flusher.note(partition)
        last_seq = taken.versions.last_seq
        self._when_durable(lambda: told.acknowledged(last_seq))
        return taken.versions

    def _when_durable(self, tell):
        self.node.storage.committer.when_durable(lambda error: tell() if error is None else None)

    def keys_of(self, name, number, count):
        """Keys that belong to a partition."""
        partitions = len(self.feed(name).partitions)
        keys = (b"k%d" % index for index in range(1_000_000))
        chosen = (key for key in keys if partition_of_hash(key_hash(key), partitions) == number)
        return [next(chosen) for _ in range(count)]

    # What the node does by itself

    async def sync(self):
        """One fsync, and the answers."""
        await self.node.storage.committer.commit()

    async def flush(self, name, number=0):
        """Moves what is durable to a segment."""
        return await self.node.storage.flusher.flush(self.partition(name, number))

    async def flush_feeds(self):
        """Moves the list of feeds to a segment."""
        for partition in self.node.feeds.system.partitions:
            await self.node.storage.flusher.flush(partition)

    async def trim(self):
        """Lets go of journal files, segments, and dropped feeds."""
        await self.node.storage.flusher._trimmer.trim()

    async def tend(self):
        """A pass of the flusher, and then the compactor on every partition. What fails is told by them."""
        self._tick()
        with contextlib.suppress(OSError):  # as the compactor's own task does
            store_uptime(self.node.storage.compactor.uptime, self.disk, DATA)
        await self.node.storage.flusher.pass_once()
        for partition in list(self.node.feeds.partitions()):
            if partition.takes_writes:
                self.ledger.allow(partition, self.feed_info(partition), self.clock.monotonic())
            await self.node.storage.compactor._tend(partition)

    @property
    def journal_path(self):
        """The newest file of the journal."""
        return f"{DATA}/journal/{file_name(self.node.storage.journal.end[0])}"

    def feed_info(self, partition):
        return self.node.feeds.of_id(partition.feed_id).info

    async def fold(self, name, number=0):
        """Folds what the policy chooses; whether there was anything."""
        partition = self.partition(name, number)
        info = self.feed_info(partition)
        self._tick()
        self.ledger.allow(partition, info, self.clock.monotonic())
        self.node.storage.compactor.look_ahead(partition, info)
        return await self.node.storage.compactor.compact(partition, info)

    async def trim_history(self, name, number=0):
        """Drops what the feed does not keep any more."""
        partition = self.partition(name, number)
        info = self.feed_info(partition)
        self._tick()
        self.ledger.allow(partition, info, self.clock.monotonic())
        self.node.storage.compactor.look_ahead(partition, info)
        await self.node.storage.compactor.trim(partition, info)

    def _tick(self):
        self.node.storage.compactor.uptime.tick(self.clock.wall_us(), int(self.clock.monotonic() * 1e6))

    def stop(self):
        """Stops cleanly."""
        self.ledger.is_stopping = True
        self.node.stop()
        self._lock.close()
        self.is_stopped = True
        self.ledger.is_clean = self.node.storage.journal.failed is None  # else the mark was not written
