"""What the storage engine does with 20 million mutations: rates, memory, disk, restarts, gets, reading back, writes.

    python bench/storage.py [--rows 20000000] [--quick] [--only ingest ...] [--plots bench/plots] [--readme]
                            [--folder DIR]

Rows of 16 + 100 bytes that do not compress; keys are uniform over a quarter of the rows; one producer through the SDK,
16 partitions, retention `compact`, level `disk`; `tailrace serve` is a process of its own, with its default settings.
`--quick` takes a tenth of the rows, `--readme` writes the figures of `latency` into bench/README.md. Files lie in a
temporary folder below `--folder`: for 20 million rows leave 10 GB free there, and 2 GB of memory for the producer.
Targets are for 20 million rows; exit code 1 where one is missed.

Needs Linux: memory and bytes written are read from /proc.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import trio

from _report import README, Line, figures, replace_section, show
from _server import Stolen
from _storage import write_queue
from _storage.data import Rows
from _storage.growth import Size, growth
from _storage.growth import lines as growth_lines
from _storage.ingest import Ingest, ingest
from _storage.latency import latency
from _storage.reading import reading

KEYS_PART = 4
# Of all rows, those that are there and those that come when a compaction begins, for the writes beside it; fewer are
# folded before a thousand writes have been made.
COMPACTED_PART = 40
COMPACTED_MIN = 300_000
QUESTIONS = ("queue", "ingest", "reading", "growth", "latency")


class Bench:
    """One run; what was found is kept for the table and the plots."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.rows: int = args.rows
        self.only: list[str] = args.only
        self.readme: bool = args.readme
        self.folder = folder
        self.log = folder / "log"
        self.lines: list[Line] = []
        self.run: Ingest | None = None
        self.sizes: list[Size] = []

    def asks(self, question: str) -> bool:
        """It is to be answered; says so."""
        if question not in self.only:
            return False
        print(f"storage: {question} ...", file=sys.stderr, flush=True)
        return True

    def _rows_anew(self) -> Rows:
        """Rows of which none has been written yet."""
        return Rows(max(self.rows // KEYS_PART, 1))

    async def answer(self) -> None:
        """All that was asked for."""
        if self.asks("queue"):
            found = [*write_queue.snapshots(self.rows), *write_queue.memory()]
            found += await write_queue.blocks(self.folder / "queue", self.log)
            self._note("queue", found)
        if self.asks("ingest"):
            rows = self._rows_anew()
            self.run = await ingest(self.folder / "ingest", self.log, rows, self.rows)
            self._note("ingest", self.run.lines())
            if self.asks("reading"):
                self._note("reading", await reading(self.folder / "ingest", self.log, rows))
        if self.asks("growth"):
            self.sizes = await growth(self.folder / "growth", self.log, self._rows_anew(), self.rows)
            self._note("growth", growth_lines(self.sizes))
        if self.asks("latency"):
            (self.folder / "latency").mkdir()
            count = max(self.rows // COMPACTED_PART, COMPACTED_MIN)
            stolen = Stolen()
            found = await latency(self.folder / "latency", self.log, Rows(count), count)
            self._note("latency", found)
            if self.readme:
                load, share = os.getloadavg()[0], stolen.share
                setting = f"{count:,} rows; load {load:.1f}; the host took {share:.0%} of the processors."
                replace_section(README, "storage.py", [setting, "", *figures(found)])

    def _note(self, question: str, lines: list[Line]) -> None:
        show(lines, f"{question}, {self.rows:,} rows")
        self.lines += lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--plots", type=Path, help="draw the curves into this folder; needs ingest and growth")
    parser.add_argument("--readme", action="store_true", help="write the figures of latency into bench/README.md")
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    args = parser.parse_args()
    if args.quick:
        args.rows //= 10
    if "reading" in args.only and "ingest" not in args.only:
        parser.error("reading reads what ingest has written: ask for both")
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as name:
        bench = Bench(args, Path(name))
        trio.run(bench.answer)
    if args.plots is not None and bench.run is not None and bench.sizes:
        from _storage.plots import draw  # matplotlib is not needed otherwise

        for path in draw(args.plots, bench.run, bench.sizes):
            print(f"storage: {path}", file=sys.stderr)
    sys.exit(0 if all(line.is_met for line in bench.lines) else 1)


if __name__ == "__main__":
    main()
