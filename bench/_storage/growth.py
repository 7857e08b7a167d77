"""A feed that grows from 100 thousand rows to all of them: ingest, memory, restarts, gets at each size.

At each size: rows are written, the node is killed in the middle of its flushes and compactions, started again, stopped
cleanly, started again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import tailrace
from _report import Line, p50
from _server import Server, Watch
from _storage.data import Rows
from _storage.ingest import FEED, PARTITIONS
from _storage.reading import get_us, opened, round_trips_us

# Parts of all rows.
_SIZES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_RESTARTS = 3
_GETS = 500


class Size(NamedTuple):
    """What was found with ``rows`` in the feed. The rate is of the rows added since the size before."""

    rows: int
    rate: float
    memory_bytes: int
    after_kill_s: float
    after_kill_cpu_s: float
    after_stop_s: float
    after_stop_cpu_s: float
    journal_bytes: int
    segments: int
    get_us: float
    round_trip_us: float


class Growing:
    """A feed in a directory of its own, whose node is started again and again. ``close`` ends the last one."""

    def __init__(self, folder: Path, log: Path, rows: Rows) -> None:
        self._folder = folder
        self._log = log
        self._rows = rows
        self._count = 0
        self._server = Server(folder, log)

    def close(self) -> None:
        """No node runs any more."""
        self._server.kill()

    async def create(self) -> None:
        """Makes the feed."""
        async with tailrace.connect(self._server.address) as client:
            await client.create_feed(FEED, partitions=PARTITIONS, retention="compact")

    async def to(self, target: int) -> Size:
        """Writes until there are so many rows, and measures."""
        with Watch(self._server) as watch:
            async with tailrace.connect(self._server.address) as client:
                begin = time.perf_counter()
                async with client.feed(FEED).writer() as writer:
                    for batch in self._rows.batches(target - self._count):
                        await writer.write(batch)
                rate = (target - self._count) / (time.perf_counter() - begin)
                status = (await client.status()).details
        self._count = target
        keys = self._rows.written_keys(_GETS)
        kills = [await self._restart(Server.kill, keys[0]) for _ in range(_RESTARTS)]
        stops = [await self._restart(Server.stop, keys[0]) for _ in range(_RESTARTS)]
        async with tailrace.connect(self._server.address) as client:
            trips = await round_trips_us(client, keys)
        self._server.stop()
        with opened(self._folder) as node:
            times = get_us(node, keys)
        self._server = Server(self._folder, self._log)
        return Size(
            rows=target,
            rate=rate,
            memory_bytes=max(sample.node for sample in watch.samples),
            after_kill_s=p50([seconds for seconds, _ in kills]),
            after_kill_cpu_s=p50([cpu for _, cpu in kills]),
            after_stop_s=p50([seconds for seconds, _ in stops]),
            after_stop_cpu_s=p50([cpu for _, cpu in stops]),
            journal_bytes=status["journal"]["bytes"],
            segments=sum(feed["segments"] for feed in status["feeds"]),
            get_us=p50(times),
            round_trip_us=p50(trips),
        )

    async def _restart(self, end: Callable[[Server], None], key: bytes) -> tuple[float, float]:
        """Ends the node and starts it again; the seconds from the start of its process to the answer of a get.

        And the seconds of processor time that it has taken.
        """
        end(self._server)
        self._server = Server(self._folder, self._log)
        async with tailrace.connect(self._server.address) as client:
            assert await client.feed(FEED).get(key) is not None
        return time.perf_counter() - self._server.started, self._server.cpu_seconds()


async def growth(folder: Path, log: Path, rows: Rows, count: int) -> list[Size]:
    """Measures at each size up to ``count`` rows, in a new directory."""
    growing = Growing(folder, log, rows)
    try:
        await growing.create()
        return [await growing.to(int(count * part)) for part in _SIZES]
    finally:
        growing.close()


def lines(sizes: list[Size]) -> list[Line]:
    """For the table: the largest size."""
    last = sizes[-1]
    return [
        Line(f"restart after SIGKILL, {last.rows:,} rows, until a get", last.after_kill_s, "s", most=5),
        Line("of it the node's processor time", last.after_kill_cpu_s, "s"),
        Line("restart after a clean stop, until a get", last.after_stop_s, "s", most=2.5),
        Line("of it the node's processor time", last.after_stop_cpu_s, "s"),
        Line("the journal then", last.journal_bytes / 2**20, "MiB"),
    ]
