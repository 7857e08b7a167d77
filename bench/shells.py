"""The client for asyncio beside the one for trio: ingest, catch-up and latency, as ratios of the same run.

    python bench/shells.py [--rows 200000] [--puts 2000] [--rounds 5]

Both use the same node, which is a process of its own, in turns. A ratio is that of the medians, and above 1 asyncio is
the faster one. uvloop takes part if it is installed. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import trio

import tailrace
import tailrace.asyncio
from _report import Line, show
from _server import Server

KEY_BYTES, VALUE_BYTES = 16, 100
PARTITIONS = 4
RATIO_MIN = 0.9

Measure = Callable[[Any, Any], Awaitable[dict[str, float]]]


async def ingest(rows: list[tuple[bytes, bytes]], client: Any, feed: Any) -> dict[str, float]:
    """Rows a second that a writer puts one by one, until all are on disk."""
    began_at = time.perf_counter()
    async with feed.writer() as writer:
        for key, value in rows:
            await writer.put(key, value)
    return {"ingest, rows/s": len(rows) / (time.perf_counter() - began_at)}


async def catch_up(client: Any, feed: Any) -> dict[str, float]:
    """Rows a second that a consumer reads as columns, from the beginning."""
    began_at, rows = time.perf_counter(), 0
    async with feed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                rows += len(event.keys())
                event.values()
    return {"catch-up, rows/s": rows / (time.perf_counter() - began_at)}


async def latency(puts: int, level: str, client: Any, feed: Any) -> dict[str, float]:
    """Puts a second, one after the other: the median's inverse, so that more is better here, too."""
    took = []
    for number in range(puts):
        began_at = time.perf_counter()
        await feed.put(b"k%d" % number, b"v", level=level)
        took.append(time.perf_counter() - began_at)
    return {f"put at level {level}, 1/s by p50": 1 / median(took)}


def under_trio(url: str, feed: str, measure: Measure) -> dict[str, float]:
    """Runs one measurement with the client for trio."""

    async def main() -> dict[str, float]:
        async with tailrace.connect(url) as client:
            return await measure(client, await client.create_feed(feed, partitions=PARTITIONS))

    return trio.run(main)


def under_asyncio(loop_factory: Any, url: str, feed: str, measure: Measure) -> dict[str, float]:
    """Runs one measurement with the client for asyncio."""

    async def main() -> dict[str, float]:
        async with tailrace.asyncio.connect(url) as client:
            return await measure(client, await client.create_feed(feed, partitions=PARTITIONS))

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())


def libraries() -> dict[str, Callable[[str, str, Measure], dict[str, float]]]:
    """The function of each library that runs a measurement, by its name."""
    found = {"trio": under_trio, "asyncio": partial(under_asyncio, None)}
    try:
        import uvloop
    except ImportError:
        return found
    return {**found, "uvloop": partial(under_asyncio, uvloop.new_event_loop)}


def main() -> int:
    """Measures, and prints the table. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--puts", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    chance = random.Random(5)
    rows = [(chance.randbytes(KEY_BYTES), chance.randbytes(VALUE_BYTES)) for _ in range(args.rows)]
    measures: list[Measure] = [
        partial(ingest, rows),
        catch_up,
        partial(latency, args.puts, "memory"),
        partial(latency, args.puts, "disk"),
    ]
    found: dict[str, dict[str, list[float]]] = {}
    order = list(libraries().items())
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder, "data"), Path(folder, "log")) as server:
        warm_up = [partial(ingest, rows[:1_000]), catch_up]  # pyarrow is imported by the first stream
        for measure in warm_up:
            under_trio(server.address, "warm-up", measure)
        for number in range(args.rounds):
            for library, run in order[number % len(order) :] + order[: number % len(order)]:
                for measure in measures:
                    for what, value in run(server.address, f"{library}-{number}", measure).items():
                        found.setdefault(what, {}).setdefault(library, []).append(value)
    lines = []
    for what, values in found.items():
        medians = {library: median(each) for library, each in values.items()}
        lines.append(Line(f"{what}: trio", medians["trio"]))
        for library in [name for name in medians if name != "trio"]:
            least = RATIO_MIN if library == "asyncio" else None
            lines.append(Line(f"{what}: {library} to trio", medians[library] / medians["trio"], "times", least=least))
    show(lines, f"asyncio to trio, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return 0 if all(line.is_met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
