"""Blocks of rows of 16 + 100 bytes that do not compress, and a writer of them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator

import trio

import tailrace
from tailrace.model.hashing import key_hash, partition_of_hash

KEY_BYTES, VALUE_BYTES = 16, 100
ROW_BYTES = KEY_BYTES + VALUE_BYTES
BLOCK_ROWS = 1_000
# Values come again after so many rows: far more than a block has, and lz4 looks no further than its block.
_VALUES = 100_000

Block = list[tailrace.Put]


class Blocks:
    """Blocks of BLOCK_ROWS puts, each of one partition, all made before. They come again and again."""

    def __init__(self, partitions: int, of_each: int = 20) -> None:
        random = os.urandom(_VALUES * VALUE_BYTES)
        values = itertools.cycle(random[at : at + VALUE_BYTES] for at in range(0, len(random), VALUE_BYTES))
        shares: list[Block] = [[] for _ in range(partitions)]
        for number in itertools.count():
            key = b"key-%012d" % number
            share = shares[partition_of_hash(key_hash(key), partitions)]
            if len(share) < of_each * BLOCK_ROWS:
                share.append(tailrace.Put(key, next(values)))
            elif min(map(len, shares)) == of_each * BLOCK_ROWS:
                break
        self._blocks = [
            share[at : at + BLOCK_ROWS] for at in range(0, of_each * BLOCK_ROWS, BLOCK_ROWS) for share in shares
        ]

    def __iter__(self) -> Iterator[Block]:
        """The partitions take turns."""
        return itertools.cycle(self._blocks)


async def write_rows(feed: tailrace.Feed, blocks: Blocks, rows: int) -> float:
    """Writes so many rows as fast as the node takes them, and returns the seconds until the last is acknowledged."""
    began = time.perf_counter()
    async with feed.writer(batch_rows=BLOCK_ROWS, in_flight_bytes=16 * 2**20, level="disk") as writer:
        for block in itertools.islice(blocks, rows // BLOCK_ROWS):
            await writer.write(block)
    return time.perf_counter() - began


async def write_paced(feed: tailrace.Feed, blocks: Blocks, rate: float) -> None:
    """Writes blocks at ``rate`` rows a second until it is cancelled; less if the node does not take them."""
    async with feed.writer(batch_rows=BLOCK_ROWS, level="disk") as writer:
        began = time.perf_counter()
        for number, block in enumerate(blocks):
            await trio.sleep(max(0.0, began + number * BLOCK_ROWS / rate - time.perf_counter()))
            await writer.write(block)
