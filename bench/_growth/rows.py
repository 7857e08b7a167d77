"""The rows: 16-byte keys, each of them once, and 16-byte values, as Arrow data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import tailrace
from _server import Server

KEY_BYTES = VALUE_BYTES = 16
BATCH_ROWS = 50_000
# Spreads the numbers over all keys, each to another one.
_ODD = np.uint64(0x9E3779B97F4A7C15)


def _pairs(first: int, count: int) -> np.ndarray:
    """Returns 16 bytes for each number from ``first`` on, which look like chance."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return np.stack([numbers * _ODD, numbers], axis=1).astype(">u8")


def key_of(number: int) -> bytes:
    """Returns the key of row ``number``."""
    key: bytes = _pairs(number, 1).tobytes()
    return key


def batches(first: int, count: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows from ``first`` on, in batches."""
    for at in range(first, first + count, BATCH_ROWS):
        size = min(BATCH_ROWS, first + count - at)
        data = pa.py_buffer(_pairs(at, size).tobytes())
        column = pa.Array.from_buffers(pa.binary(KEY_BYTES), size, [None, data])
        yield pa.record_batch({"key": column, "value": column})


class Cost(NamedTuple):
    """``rows`` in ``wall`` seconds, and processor seconds of this process and of the node."""

    rows: int
    wall: float
    client: float
    node: float

    @classmethod
    def of_all(cls, parts: Sequence[Cost]) -> Cost:
        """Returns what all ``parts`` took together."""
        return cls(sum(part.rows for part in parts), *(sum(part[field] for part in parts) for field in range(1, 4)))

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.wall

    @property
    def node_us(self) -> float:
        """µs of the node's processor for a row."""
        return self.node / self.rows * 1e6


class Spent:
    """Counts from when it is made."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._begin = time.perf_counter(), time.process_time(), server.cpu_seconds()

    def of(self, rows: int) -> Cost:
        """Returns what these rows took until now."""
        wall, client, node = self._begin
        return Cost(
            rows,
            time.perf_counter() - wall,
            time.process_time() - client,
            self._server.cpu_seconds() - node,
        )


async def ingest(server: Server, feed: tailrace.Feed, first: int, count: int) -> Cost:
    """Writes rows until all are on disk."""
    return Cost.of_all(await ingest_parts(server, feed, first, count, 1))


async def ingest_parts(server: Server, feed: tailrace.Feed, first: int, count: int, parts: int) -> list[Cost]:
    """Writes rows until all are on disk. Returns what each of so many equal parts took, from batch to batch."""
    found, size = [], count // parts
    async with feed.writer() as writer:
        for part in range(parts):
            spent, rows = Spent(server), size if part < parts - 1 else count - size * part
            for batch in batches(first + size * part, rows):
                await writer.write_arrow(batch)
            if part == parts - 1:
                await writer.flush()
            found.append(spent.of(rows))
    return found


async def catch_up(server: Server, feed: tailrace.Feed, rows_max: int) -> Cost:
    """Reads from the beginning by columns: until the present, or so many rows."""
    spent, rows = Spent(server), 0
    async with feed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                event.keys()
                event.values()
                rows += len(event)
                if rows >= rows_max:
                    break
    return spent.of(rows)
