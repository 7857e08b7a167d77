"""What a scrape of /metrics costs, and how long it holds up the node.

    python bench/metrics.py [--partitions 1024] [--streams 1000] [--scrapes 50]

One process is a node with a feed of all the partitions, with rows in each. Another process opens the streams on ten
connections, and reads nothing: the lag of each stream has to be found. What is told: the time of a scrape, the
processor time of the node for it, the longest step of a task on the loop (processor time, so that a busy machine does
not count), and the samples and bytes of an answer. `quiet`: the same without streams.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import trio

import tailrace
from _report import Line, p50, show
from tailrace.link.address import Address
from tailrace_server.config import Config
from tailrace_server.node.node import Node
from tailrace_server.node.start import open_node

# The targets of issue 18.
SCRAPE_SECONDS_MAX = 0.050
STALL_SECONDS_MAX = 0.005
_CONNECTIONS = 10
_ROWS = 20_000
# Each connection is sent a little, and then waits for a credit that never comes.
_WINDOW_BYTES = 1_000
_FEED = "orders"
_POLL_SECONDS = 0.1


class Steps(trio.abc.Instrument):
    """Measures the processor time of the longest step of a task."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._begin = time.thread_time()  # the step that adds the instrument has begun already

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begin = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._begin)


class Cost(NamedTuple):
    """Seconds of one scrape, and its longest step."""

    wall: float
    cpu: float
    step: float


async def _scrape(node: Node) -> tuple[Cost, bytes]:
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    wall, cpu = time.perf_counter(), time.process_time()
    body, _ = await node.metrics()
    cost = Cost(time.perf_counter() - wall, time.process_time() - cpu, steps.longest_s)
    trio.lowlevel.remove_instrument(steps)
    return cost, body


async def _measure(node: Node, what: str, scrapes: int) -> list[Line]:
    await _scrape(node)
    costs = []
    for _ in range(scrapes):
        await trio.sleep(_POLL_SECONDS / 4)
        cost, body = await _scrape(node)
        costs.append(cost)
    samples = sum(not line.startswith(b"#") for line in body.splitlines())
    return [
        Line(f"{what}: a scrape, p50", p50([cost.wall for cost in costs]) * 1e3, "ms", most=SCRAPE_SECONDS_MAX * 1e3),
        Line(f"{what}: a scrape, processor, p50", p50([cost.cpu for cost in costs]) * 1e3, "ms"),
        Line(
            f"{what}: the longest step on the loop, p50",
            p50([cost.step for cost in costs]) * 1e3,
            "ms",
            most=STALL_SECONDS_MAX * 1e3,
        ),
        Line(f"{what}: samples", samples),
        Line(f"{what}: an answer", len(body) / 1024, "KiB"),
    ]


@contextlib.asynccontextmanager
async def _filled(partitions: int) -> AsyncIterator[tuple[Node, str]]:
    """A node with a feed of so many partitions."""
    with tempfile.TemporaryDirectory() as folder:
        config = Config(str(Path(folder) / "data"), ("127.0.0.1", 0), None, None)
        async with open_node(config) as node:
            assert node.listening is not None
            url = f"tailrace://{Address(*node.listening)}"
            async with tailrace.connect(url) as client:
                feed = await client.create_feed(_FEED, partitions=partitions)
                async with feed.writer() as writer:
                    for number in range(_ROWS):
                        await writer.put(b"%d" % number, b"v" * 100)
            yield node, url


@contextlib.contextmanager
def _consumers(url: str, streams: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, __file__, "--consume", url, "--streams", str(streams)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def _open(node: Node, streams: int) -> None:
    """Waits until so many streams are open, and nothing more is sent."""
    while True:
        if sum(len(connection.rounds.slots) for connection in node.connections) >= streams:
            break
        await trio.sleep(_POLL_SECONDS)
    await trio.sleep(10 * _POLL_SECONDS)


async def _run(options: argparse.Namespace) -> list[Line]:
    async with _filled(options.partitions) as (node, url):
        lines = await _measure(node, "quiet", options.scrapes)
        with _consumers(url, options.streams):
            await _open(node, options.streams)
            lines += await _measure(node, "streams", options.scrapes)
    return lines


async def _consume(url: str, streams: int) -> None:
    """Opens the streams, and reads nothing until the process is killed."""
    async with contextlib.AsyncExitStack() as stack:
        for number in range(_CONNECTIONS):
            client = await stack.enter_async_context(tailrace.connect(url, name=f"consumer {number}"))
            own = range(number, streams, _CONNECTIONS)
            await stack.enter_async_context(
                client.feed(_FEED).consume(partitions=list(own), window_bytes=_WINDOW_BYTES)
            )
        await trio.sleep_forever()


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1_024)
    parser.add_argument("--streams", type=int, default=1_000)
    parser.add_argument("--scrapes", type=int, default=50)
    parser.add_argument("--consume", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.consume:
        trio.run(_consume, options.consume, options.streams)
        return
    lines = trio.run(_run, options)
    show(lines, f"/metrics at {options.partitions} partitions and {options.streams} streams")
    sys.exit(not all(line.is_met for line in lines))


if __name__ == "__main__":
    main()
