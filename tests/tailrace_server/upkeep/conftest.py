"""A node over a disk in memory: no sockets, no threads, and each step of its upkeep when a test says so."""

from __future__ import annotations

import collections
import errno
import os

import pytest
from tests.fake_host import FakeClock, InlineWorkers, SeededRandomness, fsync_on_loop
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.looked_up import items_of

from tailrace.block import encode_block
from tailrace_server.config import Config, StorageConfig
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.node.start import recover
from tailrace_server.partition.writing import write_block
from tailrace_server.runtime.host import Host
from tailrace_server.segment import NotCached
from tailrace_server.serving.lookup import Lookup

DATA = "/data"
JOURNAL = "/data/journal"
# So that a block of 1,000 bytes is a file of the journal.
FILE_BYTES = 1_000


class Engine:
    """``node`` is the running one. ``written`` are (key, value) of each partition, in the order of their seqs."""

    def __init__(self, **storage):
        self.disk = MemoryDisk()
        self.disk.make_directory(DATA)
        self.workers = InlineWorkers(self.disk)
        self.clock = FakeClock()
        self.host = Host(clock=self.clock, randomness=SeededRandomness(), disk=self.disk, workers=self.workers)
        usual = {"journal_file_bytes_max": FILE_BYTES, "reserve_bytes": 0, "free_bytes_min": 0, "flush_age_s": 0.0}
        self.config = Config(DATA, storage=StorageConfig(**(usual | storage)))
        self.written = {}
        self.numbers = collections.Counter()  # of blocks that each producer has sent to each feed
        self.start()

    def start(self):
        self.node = recover(self.config, self.host)
        fsync_on_loop(self.node.storage.committer)  # no committer runs here
        self.flusher = self.node.storage.flusher

    def kill(self):
        """The process dies, and another one starts."""
        self.disk.kill()
        self.start()
        self.node.check()

    def create(self, name="orders", **members):
        """A feed of one partition, durable; the partition."""
        feed_id = name.encode().ljust(16, b".").hex()
        self.node.feed_changes.create({"name": name, "feed_id": feed_id, "partitions": 1, **members})
        self.sync()
        return self.partition(name)

    def partition(self, name="orders"):
        return self.node.feeds.named(name).partitions[0]

    def drop(self, name="orders"):
        self.node.feed_changes.drop(self.node.feeds.named(name).info.feed_id)

    def put(self, partition, *rows, sync=True, producer=7, number=None, flags=0, ttl=None, ttls=None, compress=False):
        """A block of rows, with these ttls or this of puts; durable unless ``sync`` is False. What ``take`` gives."""
        if number is None:
            number = self.numbers[partition.feed_id, producer] = self.numbers[partition.feed_id, producer] + 1
        keys, values = map(list, zip(*rows, strict=True))
        if ttl is not None:
            ttls = [0 if value is None else ttl for value in values]
        block = encode_block(
            keys, values, partition=0, producer_id=producer, producer_seq=number, compress=compress, ttls=ttls
        )
        now_us, now = self.clock.wall_us(), self.clock.monotonic()
        taken = write_block(partition, block, self.node.storage.journal, now_us=now_us, now=now, flags=flags)
        if taken.fresh:
            self.written.setdefault((partition.feed_id, partition.id), []).extend(rows)
            self.flusher.note(partition)
            if sync:
                self.sync(partition)
        return taken

    def sync(self, *partitions):
        self.node.storage.journal.sync()
        for partition in (*self.node.feeds.system.partitions, *partitions):
            partition.durable_through(partition.high_seq)

    def get(self, partition, *keys):
        lookup = Lookup(keys, [partition] * len(keys))
        while True:
            try:
                assert lookup.step(lambda: False)
                break
            except NotCached as missing:  # its descriptor was given up: another one reads it in a thread
                missing.load()
        return [item and item.value for item in items_of(lookup)]

    def check_rows(self, partition):
        """All that was written is there, in the partition and in what it streams."""
        written = self.written[(partition.feed_id, partition.id)]
        state = dict(written)
        assert partition.high_seq == len(written)
        assert self.get(partition, *state) == list(state.values())
        partition.check()

    def feed_directories(self):
        """Names of those of the feeds that clients have made."""
        return [name for name in self.files("/data/feeds") if name != SYSTEM_FEED_ID.hex()]

    def files(self, directory):
        return self.disk.names(directory) if self.disk.exists(directory) else []

    def segments(self, partition):
        """Names of the segments' files of a partition."""
        directory = self.node.storage.store.partition_directory(partition.feed_id, partition.id)
        return [name for name in self.files(directory) if name.endswith(".seg")]

    @property
    def journal_files(self):
        """Those with a name; not one that was created ahead."""
        return [name for name in self.files(JOURNAL) if name.endswith(".log")]

    def fail(self, call, part, code=errno.EIO, times=1):
        """Let the next calls of this name on a path with ``part`` in it fail."""
        left = times

        def before(name, path):
            nonlocal left
            if left and name == call and part in path:
                left -= 1
                raise OSError(code, os.strerror(code), path)

        self.disk.before = before


@pytest.fixture
def make_engine():
    return Engine


@pytest.fixture
def engine():
    return Engine()
