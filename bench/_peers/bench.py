"""Asks the questions of the servers, one server after the other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from _peers.report import Round
from _peers.servers import Server
from _peers.worker import Found

_WORKER = str(Path(__file__).with_name("worker.py"))
_WORKER_SECONDS_MAX = 180.0
# Operations for each question. So a question takes about a second of each server on a quiet machine. Single puts take
# two or three: the p99 of 1,500 is that of 15 puts, and its ratio to another one differed by a third from run to run.
_COUNTS = {
    "put_rows": {"tailrace": 500_000, "kafka": 500_000, "redis": 100_000, "postgres": 60_000},
    "write": {"tailrace": 500_000, "kafka": 500_000, "redis": 100_000, "postgres": 150_000},
    "one": {"kafka": 1_600},
    "many": {},
    "apart": {},
    "large": {},
    "fan_out": {"tailrace": 200_000, "kafka": 200_000, "redis": 50_000, "postgres": 50_000},
}
_COUNTS["read"] = _COUNTS["columns"] = _COUNTS["write"]
_DEFAULTS = {"one": 4_500, "many": 6_000, "apart": 6_000, "large": 48}
_ROWS = 12_000  # of the other questions
# The rows that a server holds at least when it is killed.
_RESTARTS = {"restart": 50_000, "restart_large": 1_000_000}
_OPEN_LOOP_SECONDS = 2.0
QUESTIONS = ("put_rows", "write", "read", "columns", "one", "many", "apart", "half", "large", "fan_out", *_RESTARTS)
# What a question needs of another one: what that has written, or its rate.
NEEDS = {"read": "write", "columns": "write", "half": "many"}
_ONLY_TAILRACE = ("columns", "apart")


class Bench:
    """The servers, and what is asked of them."""

    def __init__(self, servers: list[Server], scale: float, questions: list[str]) -> None:
        self._servers = servers
        self._scale = scale
        self._questions = [question for question in QUESTIONS if question in questions]

    @property
    def restarts(self) -> list[str]:
        """The questions that kill servers: they are asked last."""
        return [question for question in self._questions if question in _RESTARTS]

    def round(self, number: int) -> Round:
        """Asks each question but the restarts of each server; the first server is another one each time."""
        found: Round = {}
        turn = number % len(self._servers)
        for question in self._questions:
            for server in self._servers[turn:] + self._servers[:turn]:
                if question in self._asked(server):
                    told = self._ask(server, question, number, found)
                    if told is not None:
                        found[question, server.name] = told
        return found

    def restart(self, question: str, number: int) -> Round:
        """Kills each server and starts it again. Before the first time it gets the rows."""
        found: Round = {}
        for server in self._servers:
            if not number:
                with server.filled():
                    self._answer(server, "write", question, max(1, int(_RESTARTS[question] * self._scale)))
            worker = self._worker(server, question, question, 1, stdin=subprocess.PIPE)
            assert worker.stdout is not None
            worker.stdout.readline()
            server.kill()
            server.launch()
            told, _ = worker.communicate("begin\n", timeout=_WORKER_SECONDS_MAX)
            found[question, server.name] = Found(*json.loads(told))
        return found

    def _asked(self, server: Server) -> list[str]:
        """Returns the questions of a round for a server, in their order."""
        asked = [question for question in self._questions if question not in _RESTARTS]
        return [question for question in asked if question not in _ONLY_TAILRACE or server.client == "tailrace"]

    def _ask(self, server: Server, question: str, number: int, found: Round) -> Found | None:
        """Asks a question of a round, of which ``found`` has been found so far."""
        reading = [one for one in self._asked(server) if NEEDS.get(one) == "write"]
        log = f"{'write' if question in reading else question}_{number}"
        # What a server still had to do with a log that is not needed any more would take time from the others.
        is_read_again = question in ("write", *reading) and question != (["write", *reading])[-1]
        rate = 0.0
        if question == "half":
            if ("many", server.name) not in found:
                return None
            rate = found["many", server.name].rate / 2
        count = self._count(question, server, rate)
        return self._answer(server, question, log, count, rate, "keep" if is_read_again else "drop")

    def _count(self, question: str, server: Server, rate: float) -> int:
        if question == "half":
            return max(64, int(rate * _OPEN_LOOP_SECONDS * self._scale))
        asked = _COUNTS[question].get(server.client, _DEFAULTS.get(question, _ROWS))
        return max(64, int(asked * self._scale)) if question != "large" else max(4, int(asked * self._scale))

    def _worker(
        self,
        server: Server,
        question: str,
        log: str,
        count: int,
        rate: float = 0.0,
        after: str = "keep",
        **more: object,
    ) -> subprocess.Popen[str]:
        words = (server.client, server.address, server.pid, question, log, count, rate, after)
        command = [sys.executable, _WORKER, *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload, no-any-return]

    def _answer(
        self, server: Server, question: str, log: str, count: int, rate: float = 0.0, after: str = "keep"
    ) -> Found | None:
        """Returns the answer; None if the client has failed, and why is printed then."""
        worker = self._worker(server, question, log, count, rate, after)
        try:
            told = worker.communicate(timeout=_WORKER_SECONDS_MAX)[0]
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.communicate()
        if worker.returncode == 0:
            return Found(*json.loads(told))
        print(f"peers: {question} of {server.name} has failed. Its log ends:\n{server.log[-2_000:]}", file=sys.stderr)
        return None
