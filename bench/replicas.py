"""What replicas cost, and how soon another one leads: ingest, quorum beside etcd, failover by hand and by itself,
handover, catching up, many feeds.

    python bench/replicas.py [--quick] [--only ingest ...] [--repeats 3] [--feeds N ...] [--partitions N ...]
                             [--folder DIR]

Every node is `tailrace serve` in a process of its own, with its default settings; all of them, and their clients, share
this machine and its disk, which a set would not. Rows are of 16 + 100 bytes. `--quick` takes a tenth of the sizes. Exit
code 1 where a target is missed.

Needs Linux (/proc) and, for latency, etcd (Debian, Ubuntu: sudo apt install etcd-server).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from _replicas.away import away
from _replicas.failover import failover
from _replicas.feeds import feeds
from _replicas.handover import handover
from _replicas.ingest import ingest
from _replicas.latency import latency
from _replicas.takeover import takeover
from _report import Line, show
from _server import Stolen

_Question = Callable[["Bench", Path], Awaitable[list[Line]]]


class Bench:
    """What was asked for, and the sizes."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.part = 10 if args.quick else 1
        self.repeats: int = args.repeats
        self.feeds: list[int] = args.feeds or ([10, 100] if args.quick else [100, 1_000, 10_000])
        self.partitions: list[int] = args.partitions


async def _ingest(bench: Bench, folder: Path) -> list[Line]:
    return await ingest(folder, folder / "log", 1_000_000 // bench.part, bench.repeats)


async def _latency(bench: Bench, folder: Path) -> list[Line]:
    return await latency(folder, folder / "log", 1_000 // bench.part, bench.repeats)


async def _failover(bench: Bench, folder: Path) -> list[Line]:
    return await failover(folder, folder / "log", 200_000 // bench.part, bench.repeats)


async def _takeover(bench: Bench, folder: Path) -> list[Line]:
    return await takeover(folder, folder / "log", 20 if bench.part == 1 else 3)


async def _handover(bench: Bench, folder: Path) -> list[Line]:
    return await handover(folder, folder / "log", 200_000 // bench.part, 2 * bench.repeats)


async def _away(bench: Bench, folder: Path) -> list[Line]:
    return await away(folder, folder / "log", 1_000_000 // bench.part, bench.repeats)


async def _feeds(bench: Bench, folder: Path) -> list[Line]:
    lines = []
    for count in bench.feeds:
        for partitions in bench.partitions:
            made = folder / f"{count}-{partitions}"
            lines += await feeds(made, folder / "log", count, partitions)
    return lines


QUESTIONS: dict[str, _Question] = {
    "ingest": _ingest,
    "latency": _latency,
    "failover": _failover,
    "takeover": _takeover,
    "handover": _handover,
    "away": _away,
    "feeds": _feeds,
}


async def answer(bench: Bench, questions: list[str], folder: Path) -> list[Line]:
    """All that was asked for; each table as soon as it is there."""
    lines = []
    for question in questions:
        print(f"replicas: {question} ...", file=sys.stderr, flush=True)
        stolen = Stolen()
        (folder / question).mkdir()
        found = await QUESTIONS[question](bench, folder / question)
        show(found, f"{question}; the host took {stolen.share:.0%} of the processors")
        lines += found
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--feeds", type=int, nargs="+", metavar="N", help="the numbers of feeds of the question feeds")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1], metavar="N", help="of each feed")
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as name:
        lines = trio.run(answer, Bench(args), args.only, Path(name))
    sys.exit(0 if all(line.is_met for line in lines) else 1)


if __name__ == "__main__":
    main()
