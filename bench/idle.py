"""What connections and streams without news cost a node: memory, processor, and the puts of others.

    python bench/idle.py [--quick] [--seconds 10] [--folder DIR] [--readme]

0, 1,000, 3,000 and 10,000 connections (--quick: 0, 300 and 1,000), without streams and with 10 on each, of a feed of
4,096 partitions. The connections are raw sockets that speak the protocol as a consumer of the SDK does, with its
NOOPs, in processes of their own (_idle/holder.py): so many consumers of the SDK would take gigabytes of this machine.

memory     RssAnon of the node, two seconds after the last stream has begun
idle       the node's processor time over --seconds, in which nothing happens but NOOPs
trickle    the same beside 50 puts a second into the feed of the streams
put        p50 and p99 of puts at level disk into another feed, 50 at a time in turns with a node without any: medians
           of 5 rounds of 500, and of their ratios

Needs Linux, and as many open files as connections and 8,200 more: `ulimit -Hn` says how many a process may have.
--readme writes the section and the plot of bench/README.md. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from _idle.points import TRICKLE, Point, delivery_us, points
from _report import Line, number, show
from _section import PLOTS, Panel, draw, rows_of, setting, targets, write_section
from _server import Stolen
from tailrace_server.config import Limits
from tailrace_server.node.descriptors import wanted_descriptors

SIZES, QUICK_SIZES = (0, 1_000, 3_000, 10_000), (0, 300, 1_000)
STREAMS = 10
DELIVERY_STREAMS = 1_000
P99_RATIO_MAX = 2.0


def lines(without: list[Point], with_streams: list[Point], delivery: float) -> list[Line]:
    """Returns the figures of the largest number of connections, with their targets."""
    zero, all_, most = without[0], without[-1], with_streams[-1]
    noops = all_.connections * 3 / 10  # one of the node in 10 s, and one of the client in 5 s
    return [
        Line("memory of a connection", (all_.memory - zero.memory) / all_.connections / 1024, "KiB"),
        Line("memory of a stream", (most.memory - all_.memory) / most.streams / 1024, "KiB"),
        Line(f"memory of the node with {most.connections:,} and {most.streams:,}", most.memory / 2**20, "MiB"),
        Line("processor without any", zero.idle / 1000, "ms/s"),
        Line(f"processor with {all_.connections:,} connections", all_.idle / 1000, "ms/s"),
        Line("of it, for each NOOP sent or received", (all_.idle - zero.idle) / noops, "µs"),
        Line(f"processor with {most.streams:,} streams on them", most.idle / 1000, "ms/s"),
        Line("the node's processor for a put that no stream gets", (zero.trickle - zero.idle) / TRICKLE, "µs"),
        Line(f"the same for one that {most.deliveries:.0f} streams get", (most.trickle - most.idle) / TRICKLE, "µs"),
        Line(
            f"a row alone in its block to one of {DELIVERY_STREAMS:,} streams, each on its connection", delivery, "µs"
        ),
        Line("p99 of a put beside the connections, to that without", all_.ratio, "", most=P99_RATIO_MAX),
        Line("p99 of a put beside the streams, to that without", most.ratio, "", most=P99_RATIO_MAX),
        Line("p50 of a put beside the streams, to that without", most.beside_p50 / most.alone_p50),
    ]


def _table(found: Sequence[Point]) -> list[str]:
    head = ["connections", "streams", "memory, MiB", "opened in, s", "idle, ms/s", "trickle, ms/s"]
    head += ["put, p50, µs", "put, p99, µs", "without: p50", "without: p99"]
    made = []
    for one in found:
        figures = (one.memory / 2**20, one.opened_s, one.idle / 1000, one.trickle / 1000)
        figures += (one.beside_p50, one.beside_p99, one.alone_p50, one.alone_p99)
        made.append([f"{one.connections:,}", f"{one.streams:,}", *map(number, figures)])
    return rows_of(head, made)


def _panels(without: list[Point], with_streams: list[Point]) -> list[Panel]:
    series = (("without streams", without), (f"{STREAMS} streams on each", with_streams))

    def memory(axes: Any) -> None:
        for name, found in series:
            axes.plot([one.connections for one in found], [one.memory / 2**20 for one in found], marker="o", label=name)

    def processor(axes: Any) -> None:
        for name, found in series:
            at = [one.connections for one in found]
            axes.plot(at, [one.idle / 1000 for one in found], marker="o", label=name)
        axes.plot(at, [one.trickle / 1000 for one in found], marker="o", label=f"{TRICKLE} puts/s to the streams")

    def puts(axes: Any) -> None:
        at = [one.connections for one in with_streams]
        axes.plot(at, [one.beside_p99 for one in with_streams], marker="o", label="beside the streams")
        axes.plot(at, [one.alone_p99 for one in with_streams], marker="o", label="without, in turns")

    return [
        ("memory of the node, MiB", "connections", memory),
        ("processor of the node, ms/s", "connections", processor),
        ("p99 of a put, µs", "connections", puts),
    ]


def _check_descriptors(sizes: Sequence[int]) -> None:
    most, wanted = (
        resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        wanted_descriptors(Limits(connections_max=max(sizes) + 200)),
    )
    if most != resource.RLIM_INFINITY and most < wanted:
        sys.exit(f"idle: the node needs {wanted:,} open files, and `ulimit -Hn` is {most:,}: raise it, or use --quick")


def main() -> None:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer connections")
    parser.add_argument("--seconds", type=float, default=10.0, help="over which the processor is looked at")
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    parser.add_argument("--readme", action="store_true", help="write table and plot into bench/README.md")
    args = parser.parse_args()
    sizes = QUICK_SIZES if args.quick else SIZES
    _check_descriptors(sizes)
    begin, stolen, load = time.perf_counter(), Stolen(), [os.getloadavg()[0]]
    found: list[list[Point]] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as name:
        for streams in (0, STREAMS):
            print(f"idle: {streams} streams on each connection ...", file=sys.stderr, flush=True)
            folder = Path(name) / str(streams)
            folder.mkdir()
            found.append(trio.run(points, folder, sizes, streams, args.seconds))
            load.append(os.getloadavg()[0])
        delivery = trio.run(delivery_us, Path(name), DELIVERY_STREAMS)
    made = lines(*found, delivery)
    show(made, "idle connections and streams")
    table = _table([*found[0], *found[1][1:]])
    print("\n".join(table))
    if args.readme:
        draw(PLOTS / "idle.svg", _panels(*found))
        text = [setting(load, stolen.share, time.perf_counter() - begin), "", *table, "", *targets(made), ""]
        write_section("idle.py", [*text, "![memory, processor and puts by connections](plots/idle.svg)"])
    sys.exit(0 if all(line.is_met for line in made) else 1)


if __name__ == "__main__":
    main()
