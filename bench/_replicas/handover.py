"""The longest wait of a writer while the leader hands over, once and again."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

import trio

import tailrace
from _replicas.nodes import Nodes, a_set, ask
from _report import Line
from tailrace.wire.opcodes import Opcode

VALUE_BYTES = 100
SETTLE_SECONDS = 0.5


async def handover(folder: Path, log: Path, rows: int, times: int) -> list[Line]:
    """So many handovers of a set that has so many rows, with a writer that puts one row after the other."""
    with a_set(folder / "set", log) as nodes:
        await nodes.leader()
        async with tailrace.connect(nodes.url) as client:
            feed = await client.create_feed("bench", partitions=4)
            async with feed.writer(level="quorum") as writer:
                for key in range(rows):
                    await writer.put(b"key-%012d" % key, os.urandom(VALUE_BYTES))
            waits: list[float] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write, feed, waits)
                longest = [await _hand_over(nodes, feed, waits) for _ in range(times)]
                nursery.cancel_scope.cancel()
    return [
        Line("a put while nobody hands over: median", median(waits) * 1000, "ms"),
        Line("longest wait of a put in a handover: median", median(longest) * 1000, "ms"),
        Line(f"longest wait of a put in a handover: longest of {times}", max(longest) * 1000, "ms", most=1_000.0),
    ]


async def _write(feed: tailrace.Feed, waits: list[float]) -> None:
    while True:
        begin = time.perf_counter()
        await feed.put(b"key", os.urandom(VALUE_BYTES), level="quorum")
        waits.append(time.perf_counter() - begin)


async def _hand_over(nodes: Nodes, feed: tailrace.Feed, waits: list[float]) -> float:
    """Seconds of the longest put meanwhile."""
    await trio.sleep(SETTLE_SECONDS)
    leader = await nodes.leader()
    other = (await nodes.followers())[0]
    before = len(waits)
    await ask(leader, Opcode.HANDOVER, {"to": f"127.0.0.1:{other.port}"})
    await feed.put(b"key", b"after")  # accepted after the put that was under way
    await trio.sleep(SETTLE_SECONDS)
    return max(waits[before:])
