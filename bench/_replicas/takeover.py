"""SIGKILL, SIGSTOP and SIGTERM for the leader of a set of three: until a write at quorum is accepted, by itself.

The set and its client have their default settings. Each time the client sends one write right after the signal. A node
that stops cleanly still leads then, so writes go on until its process has ended, and the longest of them counts. The
node comes back afterwards, and the next signal waits until it has caught up.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from statistics import median

import trio

import tailrace
from _replicas.nodes import Nodes, a_set
from _report import Line
from _server import Server

# The targets in seconds: of the median, and of the longest.
_TARGETS = {
    signal.SIGKILL: (3.0, 5.0),
    signal.SIGSTOP: (4.0, 6.0),
    signal.SIGTERM: (0.3, None),
}
_SETTLE_SECONDS = 1.0


async def takeover(folder: Path, log: Path, repeats: int) -> list[Line]:
    """Medians and the longest of ``repeats`` with each signal."""
    lines: list[Line] = []
    for number, (most_of_median, most) in _TARGETS.items():
        with a_set(folder / number.name, log) as nodes:
            try:
                found = await _all(nodes, log, number, repeats)
            finally:
                for server in nodes.servers:
                    server.kill()
        what = f"{number.name}, until a write is accepted"
        lines.append(Line(f"{what}: median of {repeats}", median(found), "s", most=most_of_median))
        lines.append(Line(f"{what}: longest of {repeats}", max(found), "s", most=most))
    return lines


async def _all(nodes: Nodes, log: Path, number: signal.Signals, repeats: int) -> list[float]:
    found = []
    await nodes.leader()
    async with tailrace.connect(nodes.url) as client:
        feed = await client.create_feed("bench", partitions=4)
        for _ in range(repeats):
            await feed.put(b"before", b"v")
            await nodes.caught_up()
            await trio.sleep(_SETTLE_SECONDS)
            leader = await nodes.leader()
            leader.process.send_signal(number)
            longest = await _write(feed)
            while number is signal.SIGTERM and leader.process.poll() is None:
                longest = max(longest, await _write(feed))
            found.append(longest)
            await _back(nodes, leader, log, number)
    return found


async def _write(feed: tailrace.Feed) -> float:
    """Writes a row at the default level of the set, quorum. Returns the seconds."""
    begin = time.monotonic()
    await feed.put(b"after", b"v")
    return time.monotonic() - begin


async def _back(nodes: Nodes, server: Server, log: Path, number: signal.Signals) -> None:
    """Brings a node back that has got the signal."""
    if number is signal.SIGSTOP:
        server.process.send_signal(signal.SIGCONT)
        return
    await trio.to_thread.run_sync(server.process.wait)
    server.kill()  # closes its log
    again = await trio.to_thread.run_sync(Server, server.folder, log, server.port, server.options)
    nodes.servers[nodes.servers.index(server)] = again
