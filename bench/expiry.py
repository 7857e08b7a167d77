"""What does it cost to let 100,000 keys expire that are due at once, and how long do puts take beside it?

The node is in this process, so that its processor time is known; the puts come from another one. Each row has 16 + 100
bytes. The keys are of one partition, once in the write queue, and once in a segment.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial

import trio

import tailrace
from _report import Line, p50, p99, show
from tailrace import Put
from tailrace.link.address import Address
from tailrace_server.config import Config
from tailrace_server.node.node import Node
from tailrace_server.node.start import open_node

_KEYS = 100_000
_TTL_S = 5
_SECONDS_MAX = 240
_ALONE_SECONDS = 4


def _puts(url: str) -> None:
    """Puts rows at level memory into another partition until the input ends; prints the milliseconds of each."""

    async def run() -> None:
        async with tailrace.connect(url) as client:
            feed = client.feed("others")
            print("ready", flush=True)
            times = []
            async with trio.open_nursery() as nursery:

                async def until_told() -> None:
                    await trio.to_thread.run_sync(sys.stdin.readline)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(until_told)
                number = 0
                while True:
                    began = time.perf_counter()
                    await feed.put(b"%d" % number, b"v" * 100, level="memory")
                    times.append(time.perf_counter() - began)
                    number += 1
                    await trio.sleep(0.005)
            print(" ".join(f"{seconds * 1e3:.3f}" for seconds in times), flush=True)

    trio.run(run)


def _process(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "puts", url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextlib.asynccontextmanager
async def _putting(url: str) -> AsyncIterator[list[float]]:
    """Another process puts while the body runs; afterwards the list has the milliseconds of its puts."""
    times: list[float] = []
    with _process(url) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await trio.to_thread.run_sync(process.stdout.readline)
        yield times
        process.stdin.write("end\n")
        process.stdin.flush()
        line = await trio.to_thread.run_sync(process.stdout.readline)
        times += map(float, line.split())


async def _expired(node: Node, keys: int) -> None:
    """Returns once the node has deleted so many keys."""
    while node.expirer.expired_rows < keys:  # noqa: ASYNC110 - the node tells of it to streams only
        await trio.sleep(0.005)


async def _expire(*, in_segment: bool, beside: bool) -> tuple[float, float, list[float], list[float]]:
    """Returns the processor time and the time until all keys are gone, in seconds, and the milliseconds of puts.

    Puts are measured before the keys are written, and beside their expiry.
    """
    with tempfile.TemporaryDirectory() as folder:
        config = Config(folder, ("127.0.0.1", 0), None, None)
        async with open_node(config) as node:
            assert node.listening is not None
            url = f"tailrace://{Address(*node.listening)}"
            async with tailrace.connect(url) as client:
                alone: list[float] = []
                feed = await client.create_feed("sessions", partitions=1)
                await client.create_feed("others", partitions=1)
                if beside:
                    async with _putting(url) as alone:
                        await trio.sleep(_ALONE_SECONDS)
                for first in range(0, _KEYS, 10_000):
                    rows = [Put(b"%016d" % number, b"v" * 100, _TTL_S) for number in range(first, first + 10_000)]
                    await feed.write(rows)
                [partition] = node.feeds.named("sessions").partitions
                if in_segment:
                    await node.storage.flusher.flush_all(partition)
                async with _putting(url) if beside else contextlib.nullcontext([]) as times:
                    with trio.fail_after(_SECONDS_MAX):
                        await _expired(node, 1)
                        cpu, begun = time.process_time(), time.perf_counter()
                        await _expired(node, _KEYS)
                    cpu, wall = time.process_time() - cpu, time.perf_counter() - begun
                return cpu, wall, alone, times


def main() -> None:
    """Prints the table."""
    lines = []
    for name, in_segment in (("write queue", False), ("segment", True)):
        cpu, wall, *_ = trio.run(partial(_expire, in_segment=in_segment, beside=False))
        _, beside, alone, times = trio.run(partial(_expire, in_segment=in_segment, beside=True))
        lines += [
            Line(f"{name}: processor time of a key", cpu / _KEYS * 1e6, "µs", most=10.0),
            Line(f"{name}: until the last of {_KEYS:,} keys is gone", wall, "s"),
            Line(f"{name}: the same beside puts", beside, "s"),
            Line(f"{name}: put at level memory before it, p50", p50(alone), "ms"),
            Line(f"{name}: put at level memory before it, p99", p99(alone), "ms"),
            Line(f"{name}: put at level memory beside it, p50", p50(times), "ms"),
            Line(f"{name}: put at level memory beside it, p99", p99(times), "ms"),
        ]
    show(lines, "expiry")


if __name__ == "__main__":
    if sys.argv[1:2] == ["puts"]:
        _puts(sys.argv[2])
    else:
        main()
