"""The least that a put can take on trio, beside Redis and Tailrace: a bare server and a bare client.

    python bench/floors.py [--rounds 7] [--minutes 4] [--scale 1] [--readme]

The bare client sends 116 bytes and waits for 8. The bare server (_floors/server.py) appends them to a file, calls
fdatasync once for all connections that have sent some, and answers. Neither has frames, checks, seqs, conditions,
resends, or a memory of what it took. So its figure is that of trio, of the system and of the disk, and no node on trio
can be below it. Redis is asked by its blocking client for one put, and by that for asyncio for 64.

one    one put after the other, each on disk before the next
many   64 putters, each with one row under way; of Tailrace they share a client, of the others each has a connection
half   an open loop at half of the rate of ``many``, each of its own (_peers/open_loop.py)
same   the same open loop, all at half of Redis's rate

In each round each question is asked of one after the other, in another order each time. Figures are medians of the
rounds; a ratio is the median of the ratios of the rounds. Processor time is in µs for a put.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from _peers.servers import Redis, Server, Tailrace
from _peers.worker import Found
from _report import Line, number, show
from _section import rows_of, setting, write_section
from _server import Stolen

_BENCH = Path(__file__).parent
_WORKER_SECONDS_MAX = 120.0
_COUNTS = {"one": 4_500, "many": 9_000}
_NAMES = {
    "one": "one put",
    "many": "64 putters",
    "half": "at half of its own limit",
    "same": "at half of Redis's limit",
}
_OPEN_LOOP_SECONDS = 2.0


class Bare(Server):
    """The bare server on trio."""

    name, client = "bare trio", "bare"
    install = ""

    @classmethod
    def program(cls) -> str | None:
        return sys.executable

    def version(self) -> str:
        return ""

    def command(self) -> list[str]:
        return [sys.executable, str(_BENCH / "_floors/server.py"), str(self.port), str(self.folder / "rows")]


class Way(NamedTuple):
    """A client of a server. ``questions`` are those that it is asked."""

    name: str
    client: str
    server: type[Server]
    questions: tuple[str, ...] = ("one", "many", "half", "same")


BARE, REDIS, TRIO = "bare trio", "Redis", "Tailrace, trio"
WAYS = (
    Way(BARE, "bare", Bare),
    Way(REDIS, "redis", Redis),
    Way(TRIO, "tailrace", Tailrace),
    Way("Tailrace, asyncio", "tailrace_asyncio", Tailrace, ("one", "many")),
    Way("Tailrace, blocking", "tailrace_blocking", Tailrace, ("one",)),
)

# By question and way.
Round = dict[tuple[str, str], Found]


def ask(way: Way, server: Server, question: str, log: str, count: int, rate: float) -> Found:
    """Asks one question by a process of its own."""
    asked = "half" if question == "same" else question
    words = (way.client, server.address, server.pid, asked, log, count, rate, "drop")
    command = [sys.executable, str(_BENCH / "_peers/worker.py"), *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=_WORKER_SECONDS_MAX, check=True)
    return Found(*json.loads(done.stdout))


def rate_of(question: str, name: str, found: Round) -> float | None:
    """Returns the puts a second of an open loop, 0 for other questions; None if its limit was not ``found``."""
    if question in _COUNTS:
        return 0.0
    limit = found.get(("many", REDIS if question == "same" else name))
    return None if limit is None else limit.rate / 2


def measure(args: argparse.Namespace, load: list[float]) -> list[Round]:
    """Asks in rounds, as many as the time allows."""
    rounds: list[Round] = []
    begin, longest = time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder, contextlib.ExitStack() as stack:
        ways = [way for way in WAYS if not way.server.missing()]
        servers = {kind: stack.enter_context(kind(Path(folder))) for kind in dict.fromkeys(way.server for way in ways)}
        for turn in range(args.rounds):
            at = time.perf_counter()
            if turn and at - begin + longest > args.minutes * 60:
                break
            found: Round = {}
            first = turn % len(ways)
            for question in _NAMES:
                for place, way in enumerate(ways[first:] + ways[:first]):
                    rate = rate_of(question, way.name, found)
                    if question in way.questions and rate is not None:
                        log = f"{question}_{turn}_{place}"
                        count = max(64, int(_COUNTS.get(question, rate * _OPEN_LOOP_SECONDS) * args.scale))
                        found[question, way.name] = ask(way, servers[way.server], question, log, count, rate)
            rounds.append(found)
            load.append(os.getloadavg()[0])
            longest = max(longest, time.perf_counter() - at)
    return rounds


def _cells(rounds: list[Round], question: str, name: str) -> list[str]:
    of = [found[question, name] for found in rounds if (question, name) in found]
    figures = [
        median(one.p50 for one in of),
        median(one.p99 for one in of),
        median(one.rate for one in of),
        median(one.client / one.count * 1e6 for one in of),
        median(one.server / one.count * 1e6 for one in of),
    ]
    return [name, *map(number, figures)]


def table(rounds: list[Round]) -> list[str]:
    """Returns the lines of the tables, one for each question."""
    made = []
    for question, name in _NAMES.items():
        if (question, BARE) not in rounds[0]:
            continue
        head = [name, "p50, µs", "p99, µs", "puts/s", "client, µs", "server, µs"]
        made += [
            *rows_of(head, [_cells(rounds, question, way.name) for way in WAYS if (question, way.name) in rounds[0]]),
            "",
        ]
    return made


def _ratio(rounds: list[Round], question: str, name: str, to: str, what: str) -> float:
    def value(one: Found) -> float:
        return (one.client + one.server) / one.count if what == "processor" else float(getattr(one, what))

    return median(value(found[question, name]) / value(found[question, to]) for found in rounds)


def lines(rounds: list[Round]) -> list[Line]:
    """Returns what each is to the bare one. Nothing is asked for: it is the figure that shows the limit."""
    made = []
    for question, what in (
        ("one", "p50"),
        ("one", "p99"),
        ("one", "processor"),
        ("many", "rate"),
        ("many", "processor"),
        ("half", "p99"),
        ("same", "p99"),
    ):
        for name in (REDIS, TRIO):
            if {(question, name), (question, BARE)} <= rounds[0].keys():
                ratio = _ratio(rounds, question, name, BARE, what)
                made.append(Line(f"{_NAMES[question]}, {what}: {name} to {BARE}", ratio))
    return made


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--scale", type=float, default=1.0, help="times the puts")
    parser.add_argument("--readme", action="store_true", help="write the tables into bench/README.md")
    args = parser.parse_args()
    stolen, begin, load = Stolen(), time.perf_counter(), list[float]()
    rounds = measure(args, load)
    text = table(rounds)
    print("\n".join(text))
    ratios = lines(rounds)
    show(ratios, f"medians of {len(rounds)} rounds")
    if args.readme:
        seconds = time.perf_counter() - begin
        compared = rows_of(["", "found"], [[line.what, number(line.value)] for line in ratios])
        write_section(
            "floors.py",
            [
                f"Medians of rounds in turns: {len(rounds)}. {setting(load, stolen.share, seconds)}",
                "",
                *text,
                *compared,
            ],
        )


if __name__ == "__main__":
    main()
