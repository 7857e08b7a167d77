"""What grows with a node: by 16, 256 and 4,096 partitions, and by ten thousand to a hundred million mutations.

    python bench/growth.py [--quick] [--only partitions rows] [--rows 100000000] [--minutes 10] [--readme]

Nothing may grow faster than its work: a put, a row of ingest and a row of catch-up cost the node what they cost before,
a restart has a bound, and a node at rest needs nothing for its rows. Rows have 16-byte keys, each once, and 16-byte
values. They are written as Arrow data by one writer of the SDK at level disk, since that costs this process least, and
read by columns. Processor time is the node's own; compactions are told apart. The node has its default settings.

partitions  a node for each number: start, feed, puts one after the other, 64 putters, a million rows (--quick: a
            tenth), catch-up, restarts after SIGKILL and after a clean stop, and at rest over 5 s before and after
rows        one feed of 16 partitions that grows tenfold each time. At each size: ingest, in ninths, SIGKILL in the
            middle of its flushes and compactions, restart, rest, catch-up (5 million rows at most, the median of
            three), get, a clean stop, restart

--quick grows to a million rows, in three minutes. A size is left out if it would take longer than --minutes, judged by
the one before. A hundred million take 5 GB of the folder, and as much again while segments are compacted.
--readme writes the section and the plots of bench/README.md. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import trio

from _growth.mutations import Growing, Mutations
from _growth.partitions import Partitions, grown
from _growth.report import mutation_lines, partition_lines, table, write_readme
from _report import show
from _section import setting
from _server import Stolen

PARTITIONS = (16, 256, 4_096)
ROWS = 1_000_000
ROWS_MIN = 10_000
QUICK_SHARE = 10
READ_MAX = 5_000_000
QUESTIONS = ("partitions", "rows")
_IDLE_SECONDS = 5.0


class Bench:
    """One run, and what it has found so far."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self._begin = time.perf_counter()
        self.found: list[Partitions | Mutations] = []
        self.load = [os.getloadavg()[0]]

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self._begin

    def note(self, one: Partitions | Mutations) -> None:
        """Keeps what was found."""
        self.found.append(one)
        self.load.append(os.getloadavg()[0])

    def partitions(self) -> None:
        """Measures a node with each number of partitions."""
        rows = ROWS // QUICK_SHARE if self._args.quick else ROWS
        for count in PARTITIONS:
            _say(f"{count:,} partitions")
            folder = self._folder / f"{count}"
            self.note(trio.run(grown, folder, self._folder / "log", count, rows, _IDLE_SECONDS))

    def rows(self) -> None:
        """Measures a node that grows, as far as there is time."""
        growing = Growing(self._folder / "rows", self._folder / "log")
        try:
            trio.run(growing.create)
            rows, taken = ROWS_MIN, 0.0
            while rows <= self._args.rows:
                # Ten times the rows: what is there for any number does not grow.
                if self.seconds + taken > self._args.minutes * 60:
                    _say(f"{rows:,} rows are left out, for want of time")
                    return
                _say(f"{rows:,} rows")
                begin = time.perf_counter()
                self.note(one := trio.run(growing.to, rows, READ_MAX))
                taken = 10 * one.ingest.wall + time.perf_counter() - begin
                rows *= 10
        finally:
            growing.close()


def _say(what: str) -> None:
    print(f"growth: {what} ...", file=sys.stderr, flush=True)


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, and a million at most")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--rows", type=int, default=100_000_000, help="the most rows")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    parser.add_argument("--readme", action="store_true", help="write tables and plots into bench/README.md")
    args = parser.parse_args()
    if args.quick:
        args.rows = min(args.rows, 1_000_000)
    stolen = Stolen()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as name:
        bench = Bench(args, Path(name))
        for question in args.only:
            getattr(bench, question)()
    print("\n".join(table(bench.found)))
    lines = partition_lines([one for one in bench.found if isinstance(one, Partitions)])
    lines += mutation_lines([one for one in bench.found if isinstance(one, Mutations)])
    show(lines, "growth")
    if args.readme:
        write_readme(setting(bench.load, stolen.share, bench.seconds), bench.found, lines)
    sys.exit(0 if all(line.is_met for line in lines) else 1)


if __name__ == "__main__":
    main()
