"""A follower that was away for so many mutations catches up, beside a consumer of the SDK that does the same.

The follower writes what it takes to its own journal and syncs it; the consumer only takes it, by columns.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from statistics import median

import trio

import tailrace
from _replicas.nodes import caught_up, replicated
from _report import Line
from _server import Server

READER = str(Path(__file__).with_name("reader.py"))
VALUE_BYTES = 100
BATCH_ROWS = 1_000


async def away(folder: Path, log: Path, rows: int, repeats: int) -> list[Line]:
    """Medians of ``repeats``, each on fresh nodes."""
    follower, consumer = [], []
    for number in range(repeats):
        took = await _once(folder / str(number), log, rows)
        follower.append(took[0])
        consumer.append(took[1])
    theirs, ours = median(consumer), median(follower)
    return [
        Line(f"{rows:,} mutations: a follower that starts", ours, "s"),
        Line(f"{rows:,} mutations: a consumer that starts", theirs, "s"),
        Line("follower to consumer", ours / theirs, "x"),
        Line("a follower", rows / ours, "mutations/s"),
    ]


async def _once(folder: Path, log: Path, rows: int) -> tuple[float, float]:
    with replicated(folder, log, 1) as nodes:
        leader, replica = nodes.servers
        async with tailrace.connect(leader.address) as client:
            feed = await client.create_feed("bench", partitions=4)
            await feed.put(b"first", b"")
            async with feed.consume(until="now") as stream:
                async for _ in stream:
                    pass
                positions = str(stream.latest_positions)
            await caught_up(replica, leader)
            replica.stop()
            async with feed.writer(batch_rows=BATCH_ROWS, level="disk") as writer:
                for key in range(rows):
                    await writer.put(b"key-%012d" % key, os.urandom(VALUE_BYTES))
        options = ("--replica-of", f"127.0.0.1:{leader.port}")
        # From the moment that it listens: its start is mostly imports, as the consumer's, which does not count either.
        with Server(replica.folder, log, replica.port, options) as again:
            begin = time.perf_counter()
            await caught_up(again, leader)
            following = time.perf_counter() - begin
        return following, await _consume(leader, positions)


async def _consume(leader: Server, positions: str) -> float:
    """Seconds of a consumer in a process of its own, from when it connects."""
    done = await trio.run_process([sys.executable, READER, leader.address, positions], capture_stdout=True)
    return float(done.stdout)
