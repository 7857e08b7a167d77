"""Tailrace beside its peers, each durable: Redis Streams, NATS JetStream, Kafka, etcd, PostgreSQL.

    python bench/peers.py [--rounds 5] [--minutes 12] [--only put_rows ...] [--peers kafka ...] [--scale 0.1] [--readme]

All servers run at once on loopback, over fresh data in the same folder. In each round each question is asked of one
server after the other, in another order each time, by a process of its own with the best Python client that the server
has. Figures are medians of the rounds; a ratio is the median of the ratios of the rounds, so that what other programs
do meets both. Processor time is that of the client's process and of the server with its children, for an operation.

What is installed is started. For what is not the program names the command. The clients: pip install 'tailrace[peers]'.

put_rows  rows of 16 + 100 bytes by a call for each; the client sends them together. Until all are on disk
write     the same by a call for many
read      the rows from the start of the log, row by row; columns: by columns, which only Tailrace has
one       one put after the other, each on disk before the next
many      64 putters, each with one row under way, on connections as the client likes; apart: each with a client of its
          own
half      an open loop at half of the rate of `many`: each put is due at its time, however long those before it take,
          and its latency counts from then. 64 putters take the puts that are due
large     values of 512 KiB in, and out again
fan_out   8 consumers, processes of their own, read while the rows are written
restart   from the start of a killed server to the first put on its disk, with 50,000 rows;
          restart_large: with a million

No round is begun that would end after --minutes, judged by the longest one before it.
--readme writes the table and the plots into bench/README.md. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path

from _peers.bench import NEEDS, QUESTIONS, Bench
from _peers.report import Round, Run, lines, table, write_readme
from _peers.servers import ALL, Server
from _report import show
from _server import Stolen

# Of the time; the rest is for restarts.
_ROUNDS_SHARE = 0.7


def _installed(names: list[str] | None) -> list[type[Server]]:
    """Returns the servers that are installed; names the commands for the others."""
    found = []
    for one in ALL:
        if names is None or one.client in (*names, "tailrace"):
            if missing := one.missing():
                print(f"peers: {one.name} is left out. To have it: {missing}", file=sys.stderr)
            else:
                found.append(one)
    return found


def _measured(servers: list[Server], args: argparse.Namespace) -> Run:
    stolen, begin, load = Stolen(), time.perf_counter(), []
    bench = Bench(servers, args.scale, args.only)
    rounds: list[Round] = []

    def each(what: str, minutes: float, ask: Callable[[int], None]) -> None:
        longest = 0.0
        for number in range(args.rounds):
            at = time.perf_counter()
            if number and at - begin + longest > minutes * 60:
                print(f"peers: no further {what}, for want of time", file=sys.stderr)
                return
            print(f"peers: {what} {number + 1} of {args.rounds} ...", file=sys.stderr, flush=True)
            ask(number)
            longest = max(longest, time.perf_counter() - at)

    def ask(number: int) -> None:
        rounds.append(bench.round(number))
        load.append(os.getloadavg()[0])

    def restart(question: str, number: int) -> None:
        found = bench.restart(question, number)
        if number < len(rounds):
            rounds[number] |= found
        else:
            rounds.append(found)

    each("round", args.minutes * (_ROUNDS_SHARE if bench.restarts else 1), ask)
    for number, question in enumerate(bench.restarts, 1):
        share = _ROUNDS_SHARE + (1 - _ROUNDS_SHARE) * number / len(bench.restarts)
        each(question, args.minutes * share, partial(restart, question))
    versions = {server.name: server.version() for server in servers}
    libraries = (server.library for server in servers if server.library)
    clients = [f"{library} {metadata.version(library)}" for library in libraries]
    return Run(rounds, versions, clients, args.scale, load, stolen.share, time.perf_counter() - begin)


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--peers", nargs="*", choices=[one.client for one in ALL], metavar="PEER")
    parser.add_argument("--scale", type=float, default=1.0, help="times the sizes")
    parser.add_argument("--readme", action="store_true", help="write table and plots into bench/README.md")
    args = parser.parse_args()
    for question, needed in NEEDS.items():
        if question in args.only and needed not in args.only:
            parser.error(f"{question} needs {needed}: add that to --only")
    with tempfile.TemporaryDirectory(prefix="tailrace-peers-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the user of PostgreSQL passes
        servers = [one(folder) for one in _installed(args.peers)]
        with contextlib.ExitStack() as stack:
            for server in servers:
                stack.enter_context(server)
            run = _measured(servers, args)
    table(run)
    found = lines(run)
    show(found, "targets")
    if args.readme:
        write_readme(run)
    sys.exit(0 if all(line.is_met for line in found) else 1)


if __name__ == "__main__":
    main()
