"""What streams cost and how soon they deliver: fan-out, live latency, barriers, rounds, rollbacks, idle streams.

    python bench/streams.py [--quick] [--only fan-out ...] [--repeats 3] [--gigabytes 5] [--folder DIR]

The node is `tailrace serve` in a process of its own, with its default settings; consumers are in processes of their own
too, but for barriers and rollbacks, whose consumer is in the bench's. Rows are of 16 + 100 bytes. `--quick` takes a
tenth of the sizes and times. Exit code 1 where a target is missed. At the end it says how much of the processors the
machine's host took for others meanwhile: one that is taken for milliseconds is what a p99 is made of.

Needs Linux (/proc, MSG_TRUNC) and, for latency, redis-server (Debian, Ubuntu: sudo apt install redis-server). The
stream of 5 GB needs 15 GB free below `--folder`, and some minutes to be written before anything is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from _report import Line, show
from _server import Stolen
from _streams import barriers
from _streams.fan_out import fan_out
from _streams.idle import idle_streams
from _streams.latency import latency
from _streams.rollback import rollback

_Question = Callable[["Bench", Path], Awaitable[list[Line]]]


class Bench:
    """What was asked for, and the sizes."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.part = 10 if args.quick else 1
        self.repeats: int = args.repeats
        self.bytes = int(args.gigabytes * 1e9) // self.part


async def _fan_out(bench: Bench, folder: Path) -> list[Line]:
    return await fan_out(folder / "node", folder / "log", 500_000 // bench.part, bench.repeats)


async def _latency(bench: Bench, folder: Path) -> list[Line]:
    return await latency(
        folder, folder / "log", writes=1_000 // bench.part, seconds=5.0 / bench.part, repeats=bench.repeats
    )


async def _barriers(bench: Bench, folder: Path) -> list[Line]:
    lines = await barriers.idle(folder / "idle", folder / "log", 1_000 // bench.part)
    return lines + await barriers.rounds(folder / "rounds", folder / "log", 4_000 // bench.part)


async def _hot(bench: Bench, folder: Path) -> list[Line]:
    return await barriers.hot(folder / "node", folder / "log", bench.bytes)


async def _rollback(bench: Bench, folder: Path) -> list[Line]:
    return await rollback(folder, folder / "log", 10_000, bench.repeats)


async def _idle(bench: Bench, folder: Path) -> list[Line]:
    return await idle_streams(folder / "node", folder / "log", 30.0 / bench.part)


QUESTIONS: dict[str, _Question] = {
    "fan-out": _fan_out,
    "latency": _latency,
    "barriers": _barriers,
    "hot": _hot,
    "rollback": _rollback,
    "idle": _idle,
}


async def answer(bench: Bench, questions: list[str], folder: Path) -> list[Line]:
    """All that was asked for; each table as soon as it is there."""
    lines = []
    for question in questions:
        print(f"streams: {question} ...", file=sys.stderr, flush=True)
        stolen = Stolen()
        (folder / question).mkdir()
        found = await QUESTIONS[question](bench, folder / question)
        show(found, f"{question}; the host took {stolen.share:.0%} of the processors")
        lines += found
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes and times")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="of the stream beside which barriers are measured")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as name:
        lines = trio.run(answer, Bench(args), args.only, Path(name))
    sys.exit(0 if all(line.is_met for line in lines) else 1)


if __name__ == "__main__":
    main()
