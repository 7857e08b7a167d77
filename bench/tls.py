"""Measures what TLS costs: two nodes, one with it and one without, in turns.

    python bench/tls.py [--rows 400000] [--puts 1000] [--repeats 5] [--folder DIR]

Each node is a process of its own, and this program is the writer and the consumer. A row has a key of 16 bytes and a
value of 100 bytes that does not compress. The figures are ratios of medians; `tailrace tls init` makes the
certificates. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import trio

import tailrace
from _report import Line, markdown, number, show
from _server import PROGRAM, Server
from tailrace.tls import TlsFiles, client_context

_KINDS = ("plain", "TLS")
_LEAST_RATE, _MOST_LATENCY = 0.6, 1.3


class Measured:
    """The figures of one node."""

    def __init__(self, url: str, tls: ssl.SSLContext | None) -> None:
        self._url, self._tls = url, tls
        self.ingest: list[float] = []
        self.catch_up: list[float] = []
        self.latency: list[float] = []
        self._feeds = 0

    async def measure(self, rows: list[tuple[bytes, bytes]], puts: int) -> None:
        """Writes all rows to a new feed, reads them again, and then puts rows one by one."""
        self._feeds += 1
        async with tailrace.connect(self._url, tls=self._tls) as client:
            feed = await client.create_feed(f"feed-{self._feeds}", partitions=4)
            self.ingest.append(len(rows) / await _seconds(_write, feed, rows))
            self.catch_up.append(len(rows) / await _seconds(_read, feed, len(rows)))
            took = []
            for key, value in rows[:puts]:
                began_at = time.perf_counter()
                await feed.put(key, value)
                took.append(time.perf_counter() - began_at)
            self.latency.append(1e6 * median(took))


async def _seconds(work: Callable, *arguments: object) -> float:
    began_at = time.perf_counter()
    await work(*arguments)
    return time.perf_counter() - began_at


async def _write(feed: tailrace.Feed, rows: list[tuple[bytes, bytes]]) -> None:
    async with feed.writer() as writer:
        for key, value in rows:
            await writer.put(key, value)


async def _read(feed: tailrace.Feed, count: int) -> None:
    async with feed.consume(until="now", catch_up="stream") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                count -= len(event)
    assert count == 0, f"{count} rows are missing"


async def run(nodes: list[Measured], rows: int, puts: int, repeats: int) -> None:
    """Measures the nodes in turns; the first turn of each counts for nothing."""
    made = [(b"key-%012d" % row, os.urandom(100)) for row in range(rows)]
    for _ in range(repeats + 1):
        for node in nodes:
            await node.measure(made, puts)
    for node in nodes:
        for figures in (node.ingest, node.catch_up, node.latency):
            del figures[0]


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--puts", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        certs = folder / "certs"
        subprocess.run([PROGRAM, "tls", "init", str(certs)], check=True, stdout=subprocess.DEVNULL)
        options = ("--tls-cert", f"{certs}/node.pem", "--tls-key", f"{certs}/node.key")
        with (
            Server(folder / "plain", folder / "plain.log") as plain,
            Server(folder / "tls", folder / "tls.log", options=options) as secure,
        ):
            nodes = [
                Measured(plain.address, None),
                Measured(secure.address.replace("tailrace", "tailraces"), client_context(TlsFiles(f"{certs}/ca.pem"))),
            ]
            trio.run(run, nodes, given.rows, given.puts, given.repeats)
    sys.exit(0 if report(*nodes) else 1)


def report(plain: Measured, secure: Measured) -> bool:
    """Prints the figures. Returns whether all targets are met."""
    figures = [
        ("ingest, rows/s", median(plain.ingest), median(secure.ingest)),
        ("catch-up, rows/s", median(plain.catch_up), median(secure.catch_up)),
        ("put at level disk, p50, µs", median(plain.latency), median(secure.latency)),
    ]
    rows = [(what, number(old), number(new), f"{new / old:.2f}") for what, old, new in figures]
    markdown("TLS beside plain", ["what", *_KINDS, "ratio"], rows)
    ratios = [new / old for _, old, new in figures]
    lines = [
        Line("ingest", ratios[0], "of plain", least=_LEAST_RATE),
        Line("catch-up", ratios[1], "of plain", least=_LEAST_RATE),
        Line("put, p50", ratios[2], "times plain", most=_MOST_LATENCY),
    ]
    show(lines, "TLS")
    return all(line.is_met for line in lines)


if __name__ == "__main__":
    main()
