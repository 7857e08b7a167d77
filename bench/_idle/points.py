"""What idle connections and streams cost, at one number of them after the other."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import trio

import tailrace
from _report import p50, p99
from _server import Server
from _streams.processes import helper

FOLLOWED, OTHER = "followed", "other"
PARTITIONS = 4_096
_HOLDER = str(Path(__file__).with_name("holder.py"))
# A process that holds connections needs a descriptor for each.
_HELD_MAX = 4_000
_SETTLE_SECONDS = 2.0
_ROUNDS, _PUTS, _PUTS_IN_TURN = 5, 500, 50
_VALUE = bytes(100)
_DELIVERED = 50  # rows, to all of the streams


class Point(NamedTuple):
    """What was found with so many connections and streams. Times of the processor are in µs a second of the node.

    ``trickle`` is that with TRICKLE puts a second to the followed feed, of which each row goes to ``deliveries``
    streams. Puts are in µs, to another feed: beside the idle ones, and on the node without any in turns with them.
    They are medians of the rounds, ``ratio`` that of the rounds' ratios of both p99.
    """

    connections: int
    streams: int
    memory: int
    opened_s: float
    idle: float
    trickle: float
    deliveries: float
    beside_p50: float
    beside_p99: float
    alone_p50: float
    alone_p99: float
    ratio: float


# Puts a second.
TRICKLE = 50


class Points:
    """Two nodes, one of which gets connections."""

    def __init__(self, node: Server, bare: Server, client: tailrace.Client, other: tailrace.Client) -> None:
        self._node = node
        self._bare = bare
        self._client = client
        self._other = other

    async def measure(self, sizes: Sequence[int], streams: int, seconds: float) -> list[Point]:
        """Measures at each number of connections, with so many streams on each."""
        for client in (self._client, self._other):
            await client.create_feed(FOLLOWED, partitions=PARTITIONS)
            await client.create_feed(OTHER, partitions=4)
        id = await _feed_id(self._client)
        found: list[Point] = []
        held, helpers = 0, []
        with contextlib.ExitStack() as stack:
            for size in sizes:
                begin = time.perf_counter()
                while held < size:
                    some = min(size - held, _HELD_MAX)
                    arguments = (self._node.port, id, held, some, streams, PARTITIONS)
                    helpers.append(
                        await trio.to_thread.run_sync(lambda a=arguments: stack.enter_context(helper(_HOLDER, *a)))
                    )
                    held += some
                opened_s = time.perf_counter() - begin
                found.append(await self._point(size, streams, opened_s, seconds))
                if any(one.process.poll() is not None for one in helpers):
                    sys.exit("idle: the node has closed connections: the machine is too busy to say NOOP in time")
        return found

    async def _point(self, connections: int, streams: int, opened_s: float, seconds: float) -> Point:
        await trio.sleep(_SETTLE_SECONDS)
        memory, idle = self._node.memory_bytes(), await self._spent(seconds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._trickle)
            trickle = await self._spent(seconds)
            nursery.cancel_scope.cancel()
        rounds = [await self._round() for _ in range(_ROUNDS)]
        beside, alone = zip(*rounds, strict=True)
        count = connections * streams
        return Point(
            *(connections, count, memory, opened_s, idle, trickle, count / PARTITIONS),
            *(median([each(times) for times in node]) for node in (beside, alone) for each in (p50, p99)),
            ratio=median([p99(one) / p99(other) for one, other in rounds]),
        )

    async def _spent(self, seconds: float) -> float:
        """Returns the µs of the processor that the node takes in a second."""
        cpu, begin = self._node.cpu_seconds(), time.monotonic()
        await trio.sleep(seconds)
        return (self._node.cpu_seconds() - cpu) / (time.monotonic() - begin) * 1e6

    async def _trickle(self) -> None:
        feed, number = self._client.feed(FOLLOWED), 0
        while True:
            number += 1
            await feed.put(b"key-%d" % number, _VALUE)
            await trio.sleep(1 / TRICKLE)

    async def _round(self) -> tuple[list[float], list[float]]:
        """Returns the µs of each put to the node with idle connections, and to the other one, in turns."""
        found: tuple[list[float], list[float]] = [], []
        for _ in range(_PUTS // _PUTS_IN_TURN):
            for client, times in zip((self._client, self._other), found, strict=True):
                feed = client.feed(OTHER)
                for number in range(_PUTS_IN_TURN):
                    begin = time.perf_counter_ns()
                    await feed.put(b"key-%d" % number, _VALUE)
                    times.append((time.perf_counter_ns() - begin) / 1000)
        return found


async def points(folder: Path, sizes: Sequence[int], streams: int, seconds: float) -> list[Point]:
    """Measures at each of ``sizes``, the numbers of connections, with so many streams on each."""
    # The clients of the bench and other nodes have theirs, too.
    options = ["--set", f"limits.connections_max={max(sizes) + 200}"]
    with (
        Server(folder / "node", folder / "log", options=options) as node,
        Server(folder / "bare", folder / "log") as bare,
    ):
        async with tailrace.connect(node.address) as client, tailrace.connect(bare.address) as other:
            found = await Points(node, bare, client, other).measure(sizes, streams, seconds)
        for server in (node, bare):
            server.stop()
    return found


async def delivery_us(folder: Path, streams: int) -> float:
    """Returns µs of the node's processor to send one row, alone in its block, to one of so many streams."""
    with Server(folder / "delivery", folder / "log") as node:
        async with tailrace.connect(node.address) as client:
            feed = await client.create_feed(FOLLOWED, partitions=1)
            arguments = (node.port, await _feed_id(client), 0, streams, 1, 1)
            with await trio.to_thread.run_sync(lambda: helper(_HOLDER, *arguments)):
                await trio.sleep(_SETTLE_SECONDS)
                cpu = node.cpu_seconds()
                for number in range(_DELIVERED):
                    await feed.put(b"key-%d" % number, _VALUE)
                await trio.sleep(_SETTLE_SECONDS)
                spent = node.cpu_seconds() - cpu
        node.stop()
    return spent / (_DELIVERED * streams) * 1e6


async def _feed_id(client: tailrace.Client) -> str:
    feed_id = next(feed.feed_id for feed in await client.feeds() if feed.name == FOLLOWED)
    return feed_id if isinstance(feed_id, str) else feed_id.hex()
