"""Arrow in and out: a feed's ``write_arrow`` beside a writer's ``put``, ``to_arrow`` beside a loop over items.

    python bench/arrow.py [--rows 1000000] [--partitions 16] [--rounds 3]

Both write the same rows of 16 + 100 bytes to one node, which is a process of its own, in turns, until all are on disk.
A ratio is that of the medians. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import trio

import tailrace
from _report import Line, show
from _server import Server

KEY_BYTES, VALUE_BYTES = 16, 100
RATIO_MIN = 3.0


class Cost(NamedTuple):
    """Seconds by the clock, and of processor time: of this process, and of the node."""

    wall: float
    client: float
    node: float


def strings(source: np.random.Generator, rows: int, width: int) -> Any:
    """A column of random strings of one width."""
    offsets = np.arange(rows + 1, dtype="<i4") * width
    data = source.integers(0, 256, rows * width, dtype="u1")
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


async def put(feed: Any, table: Any, rows: list[tuple[bytes, bytes]]) -> None:
    """Writes the rows one by one, and waits until all are on disk."""
    async with feed.writer() as writer:
        for key, value in rows:
            await writer.put(key, value)


async def write_arrow(feed: Any, table: Any, rows: list[tuple[bytes, bytes]]) -> None:
    """Writes the table, and waits until all of it is on disk."""
    await feed.write_arrow(table)


async def items(feed: Any, table: Any, rows: list[tuple[bytes, bytes]]) -> None:
    """Reads the latest state row by row."""
    count = 0
    async for _ in feed.items():
        count += 1
    assert count == len(rows)


async def to_arrow(feed: Any, table: Any, rows: list[tuple[bytes, bytes]]) -> None:
    """Reads the latest state into a table."""
    assert (await feed.items().to_arrow()).num_rows == len(rows)


async def cost_of(work: Callable[..., Awaitable[None]], server: Server, *arguments: Any) -> Cost:
    """Does the work, and returns its cost."""
    wall, client, node = time.perf_counter(), time.process_time(), server.cpu_seconds()
    await work(*arguments)
    return Cost(time.perf_counter() - wall, time.process_time() - client, server.cpu_seconds() - node)


async def measure(server: Server, table: Any, partitions: int, rounds: int) -> dict[str, list[Cost]]:
    """Does each work in each round, in another order each time."""
    rows = list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    gc.collect()
    gc.freeze()  # else the collector visits these million rows again and again, whichever work is measured
    found: dict[str, list[Cost]] = {}
    async with tailrace.connect(server.address) as client:
        warm = await client.create_feed("warm-up", partitions=partitions)
        for work in (put, write_arrow):
            await work(warm, table.slice(0, 1_000), rows[:1_000])
        for number in range(rounds):
            works = [put, write_arrow] if number % 2 else [write_arrow, put]
            for work in works:
                feed = await client.create_feed(f"{work.__name__}-{number}", partitions=partitions)
                found.setdefault(work.__name__, []).append(await cost_of(work, server, feed, table, rows))
            for work in [items, to_arrow] if number % 2 else [to_arrow, items]:
                found.setdefault(work.__name__, []).append(await cost_of(work, server, feed, table, rows))
            for work in works:
                await client.drop_feed(f"{work.__name__}-{number}")
    return found


def main() -> int:
    """Measures, and prints the table. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    source = np.random.default_rng(5)
    table = pa.table({"key": strings(source, args.rows, KEY_BYTES), "value": strings(source, args.rows, VALUE_BYTES)})
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder, "data"), Path(folder, "log")) as server:
        found = trio.run(measure, server, table, args.partitions, args.rounds)
    cost = {name: Cost(*map(median, zip(*costs, strict=True))) for name, costs in found.items()}
    lines = []
    for name, of in cost.items():
        lines.append(Line(f"{name}, rows/s", args.rows / of.wall))
        lines.append(Line(f"{name}: processor time of the client, us/row", of.client / args.rows * 1e6))
        lines.append(Line(f"{name}: processor time of the node, us/row", of.node / args.rows * 1e6))
    lines.append(Line("write_arrow to put", cost["put"].wall / cost["write_arrow"].wall, "times", least=RATIO_MIN))
    lines.append(Line("to_arrow to items", cost["items"].wall / cost["to_arrow"].wall, "times"))
    show(lines, f"{args.rows:,} rows, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0 if all(line.is_met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
