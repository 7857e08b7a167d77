"""1, 8 and 64 consumers of one feed: what they are given a second, and what each row costs the node.

Live: a producer writes while they read, and the node takes each row in as well. Catching up: the rows are there. The
consumers are in two processes and decode nothing (drains.py), so that the node is what is measured.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import tailrace
from _report import Line
from _server import Server
from _streams.processes import Helper, helper

CONSUMERS = (1, 8, 64)
PARTITIONS = 16
BATCH_ROWS = 1_000
_KEY, _VALUE_BYTES = b"key-%012d", 100
# CPU time of a row may be so much more with more consumers: it is told to 10 ms, and the machine is shared.
_LEVEL = 1.1


class _Found:
    """Of each repeat: rows delivered a second, microseconds of the node's processor a row, its share of a processor."""

    def __init__(self) -> None:
        self.rate: list[float] = []
        self.cpu_us: list[float] = []
        self.node_share: list[float] = []
        self.consumers_share: list[float] = []

    def add(self, rows: int, seconds: float, node: float, consumers: float) -> None:
        self.rate.append(rows / seconds)
        self.cpu_us.append(node / rows * 1e6)
        self.node_share.append(node / seconds)
        self.consumers_share.append(consumers / seconds)


async def fan_out(folder: Path, log: Path, rows: int, repeats: int) -> list[Line]:
    """Every figure, as medians of ``repeats`` rounds over all sizes."""
    value = os.urandom(_VALUE_BYTES)
    puts = [tailrace.Put(_KEY % number, value[number % 50 :] + value[: number % 50]) for number in range(rows)]
    ingest: list[float] = []
    live = {count: _Found() for count in CONSUMERS}
    later = {count: _Found() for count in CONSUMERS}
    with Server(folder, log) as server:
        async with tailrace.connect(server.address) as client:
            for number in range(repeats):
                ingest.append(await _ingest(client, server, f"alone-{number}", puts))
                for count in CONSUMERS:
                    name = f"feed-{number}-{count}"
                    await _live(client, server, name, puts, count, live[count])
                    _catch_up(server, name, rows, count, later[count])
                    await client.drop_feed(name)
        server.stop()
    return [
        Line("ingest alone, the node's processor time a row", median(ingest), "µs"),
        *_lines("live", live),
        *_lines("catching up", later),
    ]


def _lines(what: str, found: dict[int, _Found]) -> list[Line]:
    least = median(found[CONSUMERS[0]].cpu_us)
    lines = []
    for count, one in found.items():
        rate, cpu = median(one.rate), median(one.cpu_us)
        lines += [
            Line(f"{what}, {count} consumers: delivered", rate, "rows/s"),
            Line(
                f"{what}, {count} consumers: processor time of the node a delivered row",
                cpu,
                "µs",
                most=None if count == CONSUMERS[0] else least * _LEVEL,
            ),
            Line(f"{what}, {count} consumers: of one processor, the node", median(one.node_share)),
            Line(f"{what}, {count} consumers: of one processor, all consumers", median(one.consumers_share)),
        ]
    return lines


async def _ingest(client: tailrace.Client, server: Server, name: str, puts: list[tailrace.Put]) -> float:
    """Microseconds of the node's processor for a row that nobody reads."""
    await client.create_feed(name, partitions=PARTITIONS)
    before = server.cpu_seconds()
    await _write(client, name, puts)
    cpu = server.cpu_seconds() - before
    await client.drop_feed(name)
    return cpu / len(puts) * 1e6


async def _write(client: tailrace.Client, name: str, puts: list[tailrace.Put]) -> None:
    async with client.feed(name).writer(batch_rows=BATCH_ROWS) as writer:
        for at in range(0, len(puts), BATCH_ROWS):
            await writer.write(puts[at : at + BATCH_ROWS])


async def _live(
    client: tailrace.Client, server: Server, name: str, puts: list[tailrace.Put], count: int, found: _Found
) -> None:
    await client.create_feed(name, partitions=PARTITIONS)
    with _consumers(server, name, len(puts), count) as consumers:
        for one in consumers:
            one.say("connect")
            assert one.line() == "agreed"
        watch = _Watch(server, consumers)
        await _write(client, name, puts)
        watch.note(found, len(puts) * count)


def _catch_up(server: Server, name: str, rows: int, count: int, found: _Found) -> None:
    """From the moment at which they connect."""
    with _consumers(server, name, rows, count) as consumers:
        watch = _Watch(server, consumers)
        for one in consumers:
            one.say("connect")
        for one in consumers:
            assert one.line() == "agreed"
        watch.note(found, rows * count)


class _Watch:
    """What the node and the consumers take from now on, until each of these has said when it was done."""

    def __init__(self, server: Server, consumers: list[Helper]) -> None:
        self._server, self._consumers = server, consumers
        self._node, self._others = server.cpu_seconds(), self._consumers_seconds()
        self._begin = time.monotonic()

    def _consumers_seconds(self) -> float:
        return sum(one.cpu_seconds for one in self._consumers)

    def note(self, found: _Found, rows: int) -> None:
        """Waits for the consumers, and adds what was found, for ``rows`` rows delivered."""
        seconds = max([float(one.line()) for one in self._consumers]) - self._begin
        node, others = self._server.cpu_seconds() - self._node, self._consumers_seconds() - self._others
        found.add(rows, seconds, node, others)


@contextlib.contextmanager
def _consumers(server: Server, name: str, rows: int, count: int) -> Iterator[list[Helper]]:
    """In two processes where there are several."""
    shares = [count] if count == 1 else [count // 2, count - count // 2]
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(helper("drains.py", server.port, name, share, rows)) for share in shares]
