"""Data directories as a node leaves them whose journal holds many records, made in seconds.

A node is opened in this process without its tasks, so that nothing is flushed, and blocks go straight to its journal.
Journal, segments, manifests and, after a clean stop, the mark CLEAN are written by the node's own code.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from tailrace.block import Block, encode_block, encode_row
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace_server.config import Config
from tailrace_server.host.disk import RealDisk, RealFile
from tailrace_server.journal import JournalStatistics
from tailrace_server.journal.published_record import encode_published
from tailrace_server.node.node import Node
from tailrace_server.node.start import recover
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.writing import append_block
from tailrace_server.runtime.host import Host
from tailrace_server.state.last_batches import LastBatch

# About as many records as a busy node writes between two fsyncs.
_SYNCED_RECORDS = 1_000
_KEYS = 1_000_000


class Load(NamedTuple):
    """What the journal holds, over all ``partitions`` of all ``feeds``.

    Records of ``rows`` rows each, until a start takes ``replay_s`` to read them, as the journal counts it, or there are
    ``nbytes`` of them. ``producers`` is how many clients have written them. ``packed`` says that lz4 makes the blocks
    small. Each ``publish_every``-th record, 0: none, is a publish of ``published`` blocks. ``segments`` are those of
    each partition, of ten rows each, flushed before the journal's records.
    """

    name: str
    partitions: int
    replay_s: float
    feeds: int = 1
    rows: int = 1
    value_bytes: int = 40
    producers: int = 64
    packed: bool = False
    publish_every: int = 0
    published: int = 1
    segments: int = 0
    nbytes: int = 512 << 20


def make(folder: Path, load: Load, *, clean: bool) -> JournalStatistics:
    """Makes the directory ``folder``; returns what its journal holds.

    ``clean``: as after a clean stop, else as after SIGKILL.
    """
    folder.mkdir()
    node = recover(Config(str(folder)), Host(disk=_QuickDisk()))
    feeds = [_created(node, load, number) for number in range(load.feeds)]
    if load.segments:
        trio.run(_flush, node, feeds, load)
    chance = random.Random(1)
    values = [_value(chance, load) for _ in range(1_000)]
    numbers: dict[tuple[Partition, int], int] = {}
    held = node.storage.journal.statistics()
    count = 0
    while load.replay_s and held.replay_seconds < load.replay_s and held.bytes < load.nbytes:
        for _ in range(_SYNCED_RECORDS):
            count += 1
            key = b"key-%07d" % chance.randrange(_KEYS)
            partition = chance.choice(feeds)[partition_of_hash(key_hash(key), load.partitions)]
            value = values[count % len(values)]
            if load.publish_every and not count % load.publish_every:
                _publish(node, partition, load, key, value, count)
            else:
                producer = chance.randrange(1, load.producers + 1)
                number = numbers[partition, producer] = numbers.get((partition, producer), 0) + 1
                _write(node, partition, _block(partition, load, key, value).numbered(producer, number))
        node.storage.journal.sync()
        held = node.storage.journal.statistics()
    node.storage.journal.sync()
    if clean:
        node.stop()
    os.sync()
    return held


class _QuickDisk(RealDisk):
    """The real disk, of which nothing is made durable before the end: thousands of segments would take minutes."""

    def create(self, path: str) -> RealFile:
        return _QuickFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644))

    def sync_directory(self, path: str) -> None:
        pass

    def sync_directories(self, paths: Sequence[str]) -> None:
        pass


class _QuickFile(RealFile):
    __slots__ = ()

    def sync(self) -> None:
        pass


def _value(chance: random.Random, load: Load) -> bytes:
    if load.packed:
        return (chance.randbytes(40) * (load.value_bytes // 40 + 1))[: load.value_bytes]
    return chance.randbytes(load.value_bytes)


def _created(node: Node, load: Load, number: int) -> list[Partition]:
    feed_id = (0xFF << 120 | number).to_bytes(16, "big").hex()
    request = {"name": f"feed-{number}", "feed_id": feed_id, "partitions": load.partitions}
    return node.feed_changes.create(request).partitions


def _block(partition: Partition, load: Load, key: bytes, value: bytes) -> Block:
    if load.rows == 1:
        return encode_row(key, value, hash_=key_hash(key), partition=partition.id, producer_id=0, producer_seq=0)
    # One key again and again: what matters is the number of rows.
    return encode_block([key] * load.rows, [value] * load.rows, partition=partition.id)


def _write(node: Node, partition: Partition, block: Block) -> None:
    """As ``Partition.append``, but for the tree, which is not needed."""
    stamped = block.stamped(partition.high_seq + 1, _now_us())
    node.storage.journal.append_block(partition.feed_id, partition.id, partition.log.branch, stamped)
    partition.high_seq = stamped.header.last_seq


def _publish(node: Node, partition: Partition, load: Load, key: bytes, value: bytes, batch: int) -> None:
    """As ``publishing.appending.publish``, but for the tree."""
    blocks = []
    for _ in range(load.published):
        blocks.append(_block(partition, load, key, value).stamped(partition.high_seq + 1, _now_us()))
        partition.high_seq = blocks[-1].header.last_seq
    covered, bodies = encode_published({"sink": LastBatch(batch, "bench", partition.high_seq)}, blocks)
    node.storage.journal.append_published(partition.feed_id, partition.id, partition.log.branch, covered, bodies)


async def _flush(node: Node, feeds: list[list[Partition]], load: Load) -> None:
    """Gives each partition its segments, as the flusher makes them."""
    node.storage.journal.sync()
    await node.storage.flusher.write_feeds()
    for partitions in feeds:
        for partition in partitions:
            for number in range(load.segments):
                keys = [b"key-%d-%d" % (number, row) for row in range(10)]
                block = encode_block(keys, [b"value"] * 10, partition=partition.id)
                append_block(partition, block.numbered(1, number + 1), node.storage.journal, now_us=_now_us(), now=0.0)
                partition.durable_through(partition.high_seq)
                await node.storage.flusher.flush(partition)


def _now_us() -> int:
    return time.time_ns() // 1_000
