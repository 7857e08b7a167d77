"""A feed that grows from ten thousand rows on, tenfold each time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import trio

import tailrace
from _growth.restarts import Restart, restart
from _growth.rows import Cost, catch_up, ingest_parts, key_of
from _report import p50
from _server import Processor, Server, Watch, at_rest, bytes_on_disk, cpu_seconds_of

FEED = "grown"
PARTITIONS = 16
# A read takes the node a few tenths of a second, and whatever else runs then changes the figure.
_READS = 3
_GETS = 500
_PARTS = 9  # of a step to ten times the rows: each part is as much as there was before
_REST_SECONDS_MAX = 120.0
# The folders of the data directory that have rows. The space that is kept for a full disk does not count.
_DATA = ("feeds", "journal")


class Mutations(NamedTuple):
    """What was found with so many rows. ``ingest`` is of those that were added, in equal parts.

    Bytes are of all rows so far: on the disk at rest, and written to it. ``compaction`` are seconds of the processor of
    all compactions so far.
    """

    rows: int
    ingest_parts: list[Cost]
    memory: int
    written: int
    kept: int
    compaction: float
    segments: int
    killed: Restart
    stopped: Restart
    catch_up: Cost
    get_us: float
    rest_s: float

    @property
    def ingest(self) -> Cost:
        """All parts of the ingest together."""
        return Cost.of_all(self.ingest_parts)


class Growing:
    """A node that is started again and again."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder = folder
        self._log = log
        self._rows = 0
        self._written = 0
        self._compaction = 0.0
        self._server = Server(folder, log)

    def close(self) -> None:
        """Ends the last node."""
        self._server.kill()

    async def create(self) -> None:
        """Makes the feed."""
        async with tailrace.connect(self._server.address) as client:
            await client.create_feed(FEED, partitions=PARTITIONS)

    async def to(self, rows: int, read_max: int) -> Mutations:
        """Writes until there are so many rows, and measures. Reads so many of them at most."""
        with Watch(self._server) as watch:
            async with tailrace.connect(self._server.address) as client:
                feed, more = client.feed(FEED), rows - self._rows
                written = await ingest_parts(self._server, feed, self._rows, more, _PARTS)
        self._rows = rows
        killed = await self._restart(Server.kill)
        begin = time.perf_counter()
        async with tailrace.connect(self._server.address) as client:
            feed, segments = client.feed(FEED), 0
            with trio.move_on_after(_REST_SECONDS_MAX):
                segments = sum(each["segments"] for each in (await at_rest(client, self._server))["feeds"])
            rest_s = time.perf_counter() - begin
            reads = [await catch_up(self._server, feed, read_max) for _ in range(_READS)]
            caught_up = sorted(reads, key=lambda read: read.node_us)[_READS // 2]
            get_us = await _get_us(feed, rows)
        kept = sum(nbytes for kind, nbytes in bytes_on_disk(self._folder).items() if kind in _DATA)
        stopped = await self._restart(Server.stop)
        return Mutations(
            *(rows, written, max(sample.node for sample in watch.samples), self._written, kept, self._compaction),
            *(segments, killed, stopped, caught_up, get_us, rest_s),
        )

    async def _restart(self, end: Callable[[Server], None]) -> Restart:
        pid = self._server.process.pid
        self._written += self._server.written_bytes()
        self._compaction += sum(Processor.ended(pid)) + sum(map(cpu_seconds_of, self._server.compactions))
        key = key_of(self._rows - 1)
        self._server, taken = await restart(self._server, end, self._folder, self._log, FEED, key)
        return taken


async def _get_us(feed: tailrace.Feed, rows: int) -> float:
    """Returns the p50 of looking up a key by chance, one after the other, in µs."""
    chance, times = random.Random(1), []
    for _ in range(_GETS):
        key = key_of(chance.randrange(rows))
        begin = time.perf_counter_ns()
        assert await feed.get(key) is not None
        times.append((time.perf_counter_ns() - begin) / 1000)
    return p50(times)
