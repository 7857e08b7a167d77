"""How long an empty replica takes until it has everything: by segments, and by a stream alone.

    python bench/catch_up.py [--rows 1000000] [--partitions 16] [--repeats 1] [--retention history] [--folder DIR]

A node (`tailrace serve`) gets rows of 16 + 100 bytes that do not compress, and flushes them. Then, in turns, an empty
`tailrace serve --replica-of` is started, with its default settings and with ``catch_up_bytes_min`` None. Measured from
the start of its listener until it has all rows on its disk. Processor time is that of both nodes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import trio

import tailrace
from _report import Line, show
from _server import PROGRAM, Server, Stolen, at_rest
from tailrace.link.address import Address
from tailrace.trio.request import ask
from tailrace.wire.opcodes import Opcode

_KEY = "key-%012d"
_BY_STREAM = "--by-stream"


async def _fill(client: tailrace.Client, rows: int, partitions: int, retention: str) -> None:
    feed = await client.create_feed("orders", partitions=partitions, retention=retention)
    async with feed.writer(in_flight_bytes=64 * 1024 * 1024) as writer:
        for number in range(rows):
            await writer.put((_KEY % number).encode(), os.urandom(100))


async def _held(server: Server) -> int:
    """The rows that the replica has on its disk."""
    try:
        told = await ask(Address("127.0.0.1", server.port), Opcode.PARTITIONS, {"name": "orders"}, timeout_s=60)
    except tailrace.TailraceError:  # it has not heard of the feed yet
        return 0
    return sum(partition["durable_seq"] for partition in told["partitions"])


async def _catch_up(source: Server, folder: Path, rows: int, *, by_stream: bool) -> tuple[float, float, float]:
    """Seconds until the replica has all rows, and seconds of both processors."""
    program = [sys.executable, __file__, _BY_STREAM] if by_stream else [PROGRAM]
    before = source.cpu_seconds()
    options = ("--replica-of", f"127.0.0.1:{source.port}")
    with Server(folder, folder.with_suffix(".log"), options=options, program=program) as replica:
        began, own = time.perf_counter(), replica.cpu_seconds()
        while await _held(replica) < rows:  # noqa: ASYNC110 - the other process tells nobody
            await trio.sleep(0.01)
        return time.perf_counter() - began, replica.cpu_seconds() - own, source.cpu_seconds() - before


async def _measure(args: argparse.Namespace, folder: Path) -> list[Line]:
    took: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    with Server(folder / "node", folder / "log") as source:
        async with tailrace.connect(source.address) as client:
            await _fill(client, args.rows, args.partitions, args.retention)
            await client.feed("orders").fetch(folder / "warm")  # flushes what is left
            await at_rest(client, source)
        for number in range(args.repeats):
            for by_stream in took:
                target = folder / f"replica {number} {by_stream}"
                took[by_stream].append(await _catch_up(source, target, args.rows, by_stream=by_stream))
        source.stop()
    segments, stream = ([median(column) for column in zip(*took[way], strict=True)] for way in (False, True))
    return [
        Line("until live by segments", segments[0], "s"),
        Line("until live by stream", stream[0], "s"),
        Line("stream / segments", stream[0] / segments[0]),
        Line("the replica's processor time, segments", segments[1], "s"),
        Line("the replica's processor time, stream", stream[1], "s"),
        Line("the leader's processor time, segments", segments[2], "s"),
        Line("the leader's processor time, stream", stream[2], "s"),
        Line("processor time of both, stream / segments", sum(stream[1:]) / sum(segments[1:])),
    ]


def _serve_by_stream() -> None:
    """Runs `tailrace serve` as a replica that copies no segments."""
    from tailrace.cli import main
    from tailrace_server.config import Config, Replication
    from tailrace_server.node import command

    command.Config = partial(Config, replication=Replication(catch_up_bytes_min=None))  # type: ignore[misc,assignment]
    sys.argv.remove(_BY_STREAM)
    main()


def main() -> int:
    if _BY_STREAM in sys.argv:
        _serve_by_stream()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--retention", default="history")
    parser.add_argument("--folder")
    args = parser.parse_args()
    stolen = Stolen()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        lines = trio.run(_measure, args, Path(folder))
    show(lines, f"an empty replica of {args.rows:,} rows in {args.partitions} partitions")
    print(f"taken by the machine's host for others: {stolen.share:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
