"""Data directories as a node leaves them whose journal holds many records, made in seconds.

A node is opened in this process without its tasks, so that nothing is flushed, and blocks go straight to its journal.
Only the journal and, after a clean stop, the mark CLEAN differ from a new directory; both are written by the node's own
code.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import NamedTuple

from tailrace.block import Block, encode_block, encode_row
from tailrace.hashing import key_hash, partition_of_hash
from tailrace_server.config import Config
from tailrace_server.host.host import Host
from tailrace_server.node import Node
from tailrace_server.partition import Partition
from tailrace_server.start import recover

# About as many records as a busy node writes between two fsyncs.
_SYNCED_RECORDS = 1_000
_KEYS = 1_000_000


class Load(NamedTuple):
    """What the journal holds: ``records`` of ``rows`` rows each, over all ``partitions`` of all ``feeds``.

    ``producers`` is how many clients have written them.
    """

    name: str
    partitions: int
    records: int
    feeds: int = 1
    rows: int = 1
    value_bytes: int = 40
    producers: int = 64


def make(folder: Path, load: Load, *, clean: bool) -> int:
    """Makes the directory ``folder``; returns the bytes of its journal.

    ``clean``: as after a clean stop, else as after SIGKILL.
    """
    folder.mkdir()
    node = recover(Config(str(folder)), Host())
    feeds = [_created(node, load, number) for number in range(load.feeds)]
    chance = random.Random(1)
    values = [chance.randbytes(load.value_bytes) for _ in range(1_000)]
    numbers: dict[tuple[Partition, int], int] = {}
    for count in range(1, load.records + 1):
        key = b"key-%07d" % chance.randrange(_KEYS)
        hash_ = key_hash(key)
        partition = chance.choice(feeds)[partition_of_hash(hash_, load.partitions)]
        producer = chance.randrange(1, load.producers + 1)
        number = numbers[partition, producer] = numbers.get((partition, producer), 0) + 1
        value = values[count % len(values)]
        if load.rows == 1:
            block = encode_row(
                key, value, hash_=hash_, partition=partition.id, producer_id=producer, producer_seq=number
            )
        else:  # one key again and again: what matters is the number of rows
            block = encode_block([key] * load.rows, [value] * load.rows, partition=partition.id).numbered(
                producer, number
            )
        _write(node, partition, block)
        if not count % _SYNCED_RECORDS:
            node.journal.sync()
    node.journal.sync()
    nbytes = node.journal.statistics().bytes
    if clean:
        node.stop()
    return nbytes


def _created(node: Node, load: Load, number: int) -> list[Partition]:
    feed_id = (0xFF << 120 | number).to_bytes(16, "big").hex()
    request = {"name": f"feed-{number}", "feed_id": feed_id, "partitions": load.partitions}
    return node.feed_changes.create(request).partitions


def _write(node: Node, partition: Partition, block: Block) -> None:
    """As ``Partition.append``, but for the tree, which is not needed."""
    stamped = block.stamped(partition.high_seq + 1, time.time_ns() // 1_000)
    node.journal.append_block(partition.feed_id, partition.id, partition.log.branch, stamped)
    partition.high_seq = stamped.header.last_seq
