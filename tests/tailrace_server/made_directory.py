"""Whole data directories on a disk in memory, made by a node without tasks, for the tests of the offline tools."""

from __future__ import annotations

import dataclasses

import trio
from tests.fake_host import FakeClock, InlineWorkers, SeededRandomness
from tests.memory_disk import MemoryDisk
from tests.partitions import blocks_of

from tailrace.block import encode_block
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace_server.config import Config, StorageConfig
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, SYSTEM_FEED_NAME
from tailrace_server.node.start import recover
from tailrace_server.partition.writing import write_block
from tailrace_server.runtime.host import Host
from tailrace_server.upkeep.held_writer import HELD_SECONDS

DATA = "/data"
PRODUCER = 77


class MadeDirectory:
    """A node's directory. ``rows`` is everything that was written: (feed name, partition, seq) -> (key, value).

    ``names``: those of all feeds that were created, by id.
    """

    def __init__(self, disk=None, *, journal_file_bytes_max=1 << 16):
        self.disk = MemoryDisk() if disk is None else disk
        storage = StorageConfig(journal_file_bytes_max=journal_file_bytes_max, reserve_bytes=0)
        self.config = Config(DATA, storage=storage)
        self.host = Host(
            clock=FakeClock(),
            randomness=SeededRandomness(),
            disk=self.disk,
            workers=InlineWorkers(self.disk),
            network=None,
        )
        self.rows = {}
        self.names = {SYSTEM_FEED_ID: SYSTEM_FEED_NAME}
        self._numbers = {}
        self.disk.make_directory(DATA)
        self.node = None
        self.start()

    def start(self, **changes):
        self.node = recover(dataclasses.replace(self.config, **changes), self.host)
        return self.node

    def start_on(self, disk):
        """A node over a fork of the disk, or a repaired one; ``node`` stays."""
        return recover(self.config, dataclasses.replace(self.host, disk=disk, workers=InlineWorkers(disk)))

    def stop(self):
        """A clean stop."""
        self.node.stop()
        for partition in self.node.feeds.partitions():
            for segment in partition.chain.segments:
                segment.close()
        self.node = None

    def kill(self):
        self.disk.kill()
        self.node = None

    def create(self, name, partitions=2, retention="compact"):
        self.node.feed_changes.create(
            {
                "name": name,
                "feed_id": self.host.randomness.token(16).hex(),
                "partitions": partitions,
                "retention": retention,
            }
        )
        self._sync_feeds()
        feed = self.node.feeds.named(name)
        self.names[feed.info.feed_id] = name
        return feed

    def _sync_feeds(self):
        self.node.storage.journal.sync()
        for partition in self.node.feeds.system.partitions:
            partition.durable_through(partition.high_seq)

    def write(self, name, pairs):
        """Writes (key, value) pairs, in one block a partition, and makes them durable."""
        feed = self.node.feeds.named(name)
        by_partition = {}
        for key, value in pairs:
            by_partition.setdefault(partition_of_hash(key_hash(key), len(feed.partitions)), []).append((key, value))
        for number, rows in by_partition.items():
            partition = feed.partitions[number]
            self._numbers[name, number] = producer_seq = self._numbers.get((name, number), 0) + 1
            keys, values = zip(*rows, strict=True)
            block = encode_block(
                keys, values, partition=number, producer_id=PRODUCER, producer_seq=producer_seq, compress=False
            )
            taken = write_block(partition, block, self.node.storage.journal, now_us=self.host.clock.wall_us(), now=0.0)
            for seq, row in enumerate(rows, taken.versions.first_seq):
                self.rows[name, number, seq] = row
            self.node.storage.flusher.note(partition)
        self.node.storage.journal.sync()
        for partition in feed.partitions:
            partition.durable_through(partition.high_seq)

    def flush(self, name, *numbers):
        feed = self.node.feeds.named(name)

        async def run():
            for partition in feed.partitions:
                if not numbers or partition.id in numbers:
                    await self.node.storage.flusher.flush(partition)

        trio.run(run)

    def trim(self):
        async def run():
            await self.node.storage.flusher._trimmer.trim()

        trio.run(run)

    def keep(self):
        """Writes HELD, as the node's task does within ten seconds."""
        self.host.clock.advance(HELD_SECONDS)
        trio.run(self.node.storage.held.keep)

    def fold(self, name):
        """Folds what the policy chooses, and removes what was folded."""
        feed = self.node.feeds.named(name)

        async def run():
            for partition in feed.partitions:
                while await self.node.storage.compactor.compact(partition, feed.info):
                    pass
            await self.node.storage.flusher._trimmer.trim()

        trio.run(run)

    def drop(self, name):
        self.node.feed_changes.drop(self.node.feeds.named(name).info.feed_id)
        self._sync_feeds()
        self.rows = {place: row for place, row in self.rows.items() if place[0] != name}

    def flush_and_trim(self, name):
        """All in segments, and the journal rotated so that nothing of it is kept."""
        self.flush(SYSTEM_FEED_NAME)
        self.flush(name)
        self.node.storage.journal._rotate()
        self.node.storage.journal.sync()  # which names the new file: only then the older ones may go
        self.trim()


def rows_of(node):
    """What a running node holds, as ``MadeDirectory.rows``; feeds by name. Superseded rows that are kept count too."""
    rows = {}
    for feed in node.feeds:
        for partition in feed.partitions:
            for block in blocks_of(partition):
                columns = block.columns()
                for seq, key, value in zip(columns.seqs(), columns.keys(), columns.values(), strict=True):
                    rows[feed.info.name, partition.id, seq] = key, value
    return rows
