"""``tailrace bench``: measures this machine and a node, with a feed that it creates and drops.

One program writes and reads over one connection each, as most do. So the figures are what such a program gets here, and
not the most that the node can do.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, NamedTuple, cast

import trio
import typer

from tailrace.cli.errors import CommandFailed
from tailrace.cli.keys import WriteLevel
from tailrace.cli.options import DEFAULT_URL, Json, Node, Token, Url, target
from tailrace.cli.output import make_console, make_table, print_json
from tailrace.cli.tls_options import uses_node
from tailrace.consuming.events import Mutations
from tailrace.model import LevelName
from tailrace.trio.client import Client
from tailrace.trio.feed import Feed

# A write of the journal with its fsync, as a single put makes.
_SYNC_BYTES = 4_096
_SYNCS = 200
_PUTS = 200


class Figure(NamedTuple):
    """One measurement: what, its value, and its unit."""

    what: str
    value: float
    unit: str


@uses_node
def bench(
    rows: Annotated[int, typer.Option("--rows", min=1_000, max=100_000_000, help="The rows to write and read.")] = (
        200_000
    ),
    value_bytes: Annotated[
        int, typer.Option("--value-bytes", min=0, max=1_000_000, help="The bytes of a value; keys have 16.")
    ] = 200,
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=4_096, help="The partitions of the feed.")] = 4,
    directory: Annotated[
        str | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            help="Measure fsync of this machine's disk here, such as the folder of a data directory. By default not.",
        ),
    ] = None,
    level: WriteLevel = None,
    json: Json = False,
    url: Url = DEFAULT_URL,
    node: Node = None,
    token: Token = None,
) -> None:
    """Measure a node: the latency of puts, the rate of writing, and the rate of reading it all again.

    It writes into a feed of its own, and drops the feed at the end. Figures are of this program, this node and this
    moment: other load falsifies them.

    \b
    Example:
      tailrace bench --directory /var/lib
    """
    figures = [] if directory is None else syncs(directory)

    async def work(client: Client) -> list[Figure]:
        name = f"bench-{secrets.token_hex(4)}"
        feed = await client.create_feed(name, partitions=partitions)
        try:
            return [
                *await _puts(feed, value_bytes, cast(LevelName | None, level)),
                *await _ingest(feed, rows, value_bytes, cast(LevelName | None, level)),
                *await _catch_up(feed, rows),
            ]
        finally:
            with trio.CancelScope(shield=True):
                await client.drop_feed(name)

    figures += target("bench", url, node, token).call(work)
    if json:
        for figure in figures:
            print_json(figure._asdict())
        return
    columns = [("measured", "left"), ("value", "right"), ("unit", "left")]
    make_console().print(make_table("", columns, ((f.what, f"{f.value:,.2f}", f.unit) for f in figures)))


def syncs(directory: str) -> list[Figure]:
    """Measures writes of 4 KiB with fsync into a file in ``directory``, which is removed. Raises OSError."""
    times = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix="tailrace-bench-") as file:
        for _ in range(_SYNCS):
            began = time.perf_counter()
            os.write(file.fileno(), bytes(_SYNC_BYTES))
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return _latencies("fsync of 4 KiB", times)


async def _puts(feed: Feed, value_bytes: int, level: LevelName | None) -> list[Figure]:
    """Measures puts, one after the other."""
    times = []
    for _, (key, value) in zip(range(_PUTS), _rows(value_bytes), strict=False):
        began = time.perf_counter()
        await feed.put(key, value, level=level)
        times.append(time.perf_counter() - began)
    return _latencies("put, one after the other", times)


async def _ingest(feed: Feed, rows: int, value_bytes: int, level: LevelName | None) -> list[Figure]:
    """Measures a writer, until the last row has its level."""

    async def write() -> int:
        async with feed.writer(level=level) as writer:
            for _, (key, value) in zip(range(rows), _rows(value_bytes), strict=False):
                await writer.put(key, value)
        return rows

    return await _rate("writing by a writer", write, 16 + value_bytes)


async def _catch_up(feed: Feed, rows: int) -> list[Figure]:
    """Measures a consumer from the beginning to the present end. Raises CommandFailed if rows are missing."""

    async def read() -> int:
        found = 0
        async with feed.consume(until="now") as stream:
            async for event in stream:
                if isinstance(event, Mutations):
                    found += len(event)
                    event.values()  # a consumer uses them
        return found

    figures = await _rate("reading from the beginning", read, None)
    if figures[-1].value < rows:
        raise CommandFailed(f"{figures[-1].value:.0f} rows were read, and {rows} written: report this as a bug")
    return figures[:-1]


async def _rate(what: str, work: Callable[[], Awaitable[int]], row_bytes: int | None) -> list[Figure]:
    began = time.perf_counter()
    count = await work()
    seconds = time.perf_counter() - began
    found = [Figure(what, count / seconds, "rows/s")]
    if row_bytes is not None:
        found.append(Figure(what, count * row_bytes / seconds / 1024**2, "MiB/s of keys and values"))
    else:
        found.append(Figure(what, count, "rows"))
    return found


def _latencies(what: str, times: list[float]) -> list[Figure]:
    """Returns the median and the 99th percentile."""
    ordered = sorted(times)
    return [
        Figure(f"{what}, {name}", 1_000 * ordered[int(len(ordered) * share)], "ms")
        for name, share in (("median", 0.5), ("99 %", 0.99))
    ]


def _rows(value_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields rows with different keys. Values are random, so that no compression flatters the figures."""
    pool = os.urandom(value_bytes + 4_096)
    while True:
        key = os.urandom(16)
        at = int.from_bytes(key[:2]) % 4_096
        yield key, pool[at : at + value_bytes]
