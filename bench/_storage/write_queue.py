"""The write queue: what a snapshot of it takes, and its memory.

In this process, but for the count of blocks: how soon a node merges them depends on its loop.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median

import trio

import tailrace
from _report import Line
from _server import Server
from _storage.data import KEY_BYTES, VALUE_BYTES, key_of
from tailrace.block import Block, encode_block, encode_row
from tailrace.model import Level
from tailrace.model.hashing import key_hash
from tailrace_server.partition.chain import Pins
from tailrace_server.partition.partition import Partition
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.tree.tree import Tree

_BLOCK_ROWS = 1_000
_SNAPSHOTS = 1_001
_SINGLE_PUTS = 30_000
_WRITERS = 64
_WRITE_SECONDS = 5.0


def snapshots(rows: int) -> list[Line]:
    """Of a write queue of a thousand mutations, and of ``rows``."""
    lines: list[Line] = []
    for count in (_BLOCK_ROWS, rows):
        partition = _partition_of(count)
        tree, last_seq = partition.tree, partition.tree.last_seq
        places = [random.randrange(last_seq) for _ in range(_SNAPSHOTS)]
        steps = iter(places)

        def take(tree: Tree = tree, steps: object = steps) -> object:
            return next(tree.blocks_after(next(steps)))  # type: ignore[call-overload]

        def begin(partition: Partition = partition) -> object:
            stream = PartitionStream(1, partition, Level.DISK, 0, None, 0, pins=Pins())
            stream.begin_snapshot()
            return stream

        name = f"of {count:,} mutations"
        lines += [
            Line(f"a snapshot {name}: the tree and its first block", _median_us(take), "µs", most=10),
            Line(f"a stream's snapshot {name}: its blocks, up to 64 MiB", _median_us(begin), "µs"),
        ]
    return lines


def _partition_of(rows: int) -> Partition:
    """A partition with so many mutations in its queue; all blocks share one body, which this machine has room for."""
    keys = [key_of(number) for number in range(_BLOCK_ROWS)]
    values = [random.randbytes(VALUE_BYTES) for _ in keys]
    block = encode_block(keys, values, partition=0, producer_id=1, producer_seq=1)
    tree = Tree()
    for first_seq in range(1, rows + 1, _BLOCK_ROWS):
        tree = tree.append(block.stamped(first_seq, first_seq))
    partition = Partition(bytes(16), 0, 0, 2**64 - 1)
    partition.replace_tree(tree)
    partition.high_seq = partition.durable_seq = tree.last_seq
    return partition


def _median_us(run: Callable[[], object]) -> float:
    times = []
    for _ in range(_SNAPSHOTS):
        begin = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return median(times)


def memory() -> list[Line]:
    """Of single puts, each a block as it comes from a connection: what tracemalloc finds to their bytes on the wire."""
    value = random.randbytes(VALUE_BYTES)
    wires = [_wire(key_of(number), value) for number in range(_SINGLE_PUTS)]
    wire_bytes = sum(map(len, wires))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tree = Tree()
    for number, wire in enumerate(wires, 1):
        block = Block.parse(memoryview(bytes(wire)))
        block = Block(block.header, block.head, bytes(block.body))  # as requests.py does, of a chunk with others
        tree = tree.append(block.stamped(number, number))
    unmerged, counted = tracemalloc.get_traced_memory()[0] - before, tree.memory_bytes
    tree = tree.merge_aged(tree.last_seq)
    merged, counted_after = tracemalloc.get_traced_memory()[0] - before, tree.memory_bytes
    tracemalloc.stop()
    row = f"{KEY_BYTES} + {VALUE_BYTES} bytes"
    return [
        Line(f"a single put of {row} on the wire", wire_bytes / _SINGLE_PUTS, "bytes"),
        Line("the queue's memory before merging / wire", unmerged / wire_bytes, most=2.0),
        Line("what the node counts before merging / found", counted / unmerged),
        Line("the queue's memory after merging / wire", merged / wire_bytes, most=1.3),
        Line("what the node counts after merging / found", counted_after / merged),
    ]


def _wire(key: bytes, value: bytes) -> bytes:
    block = encode_row(key, value, hash_=key_hash(key), partition=0, producer_id=1, producer_seq=1)
    return block.tobytes()


async def blocks(folder: Path, log: Path) -> list[Line]:
    """The most blocks that a node's queue of one partition has while single puts come as fast as they can."""
    most = puts = 0
    value = random.randbytes(VALUE_BYTES)
    with Server(folder, log) as server:
        async with tailrace.connect(server.address) as client:
            await client.create_feed("single", partitions=1)
            feed = client.feed("single")

            async def write(number: int) -> None:
                nonlocal puts
                while True:
                    await feed.put(key_of(number), value)
                    puts += 1

            with trio.move_on_after(_WRITE_SECONDS):
                async with trio.open_nursery() as nursery:
                    for number in range(_WRITERS):
                        nursery.start_soon(write, number)
                    while True:
                        details = (await client.status()).details
                        most = max(most, details["feeds"][0]["blocks"])
                        await trio.sleep(0.05)
        server.stop()
    return [
        Line(f"single puts of {_WRITERS} tasks at once", puts / _WRITE_SECONDS, "rows/s"),
        Line("blocks in the queue at most", most, most=10_000),
    ]
