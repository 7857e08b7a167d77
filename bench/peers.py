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
many      64 putters, each with one row under way, on connections as the client likes; shared: on one connection
large     values of 512 KiB in, and out again
fan_out   8 consumers, processes of their own, read while the rows are written
restart   from the start of a killed server to the first put on its disk, with 50,000 rows and what else it has

No round is begun that would end after --minutes, judged by the longest one before it.
--readme writes the table and the plots into bench/README.md. Exit code 1 if a target is missed.
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
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from _peers.report import Round, Run, lines, table, write_readme
from _peers.servers import ALL, Server
from _peers.worker import Found
from _report import show
from _server import Stolen

_WORKER = str(Path(__file__).parent / "_peers/worker.py")
_WORKER_SECONDS_MAX = 180.0
# Operations for each question. So a question takes about a second of each server on a quiet machine.
_COUNTS = {
    "put_rows": {"tailrace": 500_000, "kafka": 500_000, "redis": 100_000, "postgres": 60_000},
    "write": {"tailrace": 500_000, "kafka": 500_000, "redis": 100_000, "postgres": 150_000},
    "one": {"kafka": 800},
    "many": {},
    "shared": {},
    "large": {},
    "fan_out": {"tailrace": 200_000, "kafka": 200_000, "redis": 50_000, "postgres": 50_000},
}
_COUNTS["read"] = _COUNTS["columns"] = _COUNTS["write"]
_DEFAULTS = {"one": 1_500, "many": 6_000, "shared": 6_000, "large": 48}
_ROWS = 12_000  # of the other questions
_RESTART_ROWS = 50_000
_ROUNDS_SHARE = 0.85  # of the time; the rest is for restarts
QUESTIONS = ("put_rows", "write", "read", "columns", "one", "many", "shared", "large", "fan_out", "restart")
_ONLY_TAILRACE = ("columns", "shared")


class Bench:
    """The servers, and what is asked of them."""

    def __init__(self, servers: list[Server], scale: float, questions: list[str]) -> None:
        self._servers = servers
        self._scale = scale
        self._questions = questions

    def round(self, number: int) -> Round:
        """Asks each question but the restart of each server; the first server is another one each time."""
        found: Round = {}
        turn = number % len(self._servers)
        for question in self._questions:
            if question == "restart":
                continue
            for server in self._servers[turn:] + self._servers[:turn]:
                if question not in _ONLY_TAILRACE or server.client == "tailrace":
                    # What was written is read.
                    log = f"{'write' if question in ('read', 'columns') else question}_{number}"
                    if (told := self._ask(server, question, log, self._count(question, server))) is not None:
                        found[question, server.name] = told
        return found

    def restarts(self, number: int) -> Round:
        """Kills each server and starts it again."""
        found: Round = {}
        for server in self._servers:
            if not number:
                self._ask(server, "write", "restart", max(1, int(_RESTART_ROWS * self._scale)))
            worker = self._worker(server, "restart", "restart", 1, stdin=subprocess.PIPE)
            assert worker.stdout is not None
            worker.stdout.readline()
            server.kill()
            server.launch()
            told, _ = worker.communicate("begin\n", timeout=_WORKER_SECONDS_MAX)
            found["restart", server.name] = Found(*json.loads(told))
        return found

    def _count(self, question: str, server: Server) -> int:
        asked = _COUNTS[question].get(server.client, _DEFAULTS.get(question, _ROWS))
        return max(64, int(asked * self._scale)) if question != "large" else max(4, int(asked * self._scale))

    def _worker(self, server: Server, question: str, log: str, count: int, **more: object) -> subprocess.Popen[str]:
        words = (server.client, server.address, server.pid, question, log, count)
        command = [sys.executable, _WORKER, *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload, no-any-return]

    def _ask(self, server: Server, question: str, log: str, count: int) -> Found | None:
        """Returns the answer; None if the client has failed, and why is printed then."""
        worker = self._worker(server, question, log, count)
        try:
            told = worker.communicate(timeout=_WORKER_SECONDS_MAX)[0]
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.communicate()
        if worker.returncode == 0:
            return Found(*json.loads(told))
        print(f"peers: {question} of {server.name} has failed. Its log ends:\n{server.log[-2_000:]}", file=sys.stderr)
        return None


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

    def restart(number: int) -> None:
        found = bench.restarts(number)
        if number < len(rounds):
            rounds[number] |= found

    has_restarts = "restart" in args.only
    each("round", args.minutes * (_ROUNDS_SHARE if has_restarts else 1), ask)
    if has_restarts:
        each("restart", args.minutes, restart)
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
    if {"read", "columns"} & set(args.only) and "write" not in args.only:
        parser.error("read and columns read what write has written: add write to --only")
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
