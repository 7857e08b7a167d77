"""A node in a process of its own: started, killed, paused, stopped; its answers, its log and its end are checked."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace import TailraceError
from tailrace.link.address import Address
from tailrace.trio import request
from tailrace.wire.opcodes import Opcode

from .forks import PROGRAM, ROOT, Fork
from .ports import free_port
from .program import Orders

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST = "127.0.0.1"
# Far more seconds than these take on a busy machine.
START_S = 120.0
STOP_S = 120.0
ASK_S = 60.0
# Texts in a node's log that tell of an error which no answer tells.
ALARMS = ("Traceback", "internal error", "Exception")


class NodeFailed(AssertionError):
    """A node has not come up, or has ended in a way that was not expected."""


class NodeProcess:
    """A node over the directory ``data``. It keeps its port from one start to the next, and ends with the tests.

    Calls wait in the calling thread. Nothing is started until `start` or `launch` is called.

    Args:
        data: The data directory.
        orders: How the process differs from the plain command.
        port: Its port; a free one by default.
        options: More options of ``tailrace serve``.
        log_path: The file that its log is appended to; the stderr of the tests by default.
        http: The address of its HTTP port; "off" by default.
    """

    def __init__(
        self,
        data: Path,
        orders: Orders | None = None,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        log_path: Path | None = None,
        log_level: str = "warning",
        http: str = "off",
    ) -> None:
        self.http = http
        self.data = data
        self.name = data.name
        self.disk_trouble = ""
        self.orders = orders or Orders()
        self.port = port or free_port()
        self.member = self.address  # its name in a set: the address that it was made with
        self.options = list(options)
        self.log_path = log_path
        self.is_paused = False
        self._log_level = log_level
        self._process: Fork | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"tailrace://{self.address}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """It was started, and was not ended. It may be paused, or have ended by itself."""
        return self._process is not None

    def _running(self) -> Fork:
        assert self._process is not None, f"{self.name} does not run"
        return self._process

    # Start

    def start(self) -> None:
        """Starts the node. Returns when it answers."""
        self.launch()
        self.require_ready()

    def launch(self) -> None:
        """Starts the process, and does not wait for it."""
        orders = {name: value for name, value in dataclasses.asdict(self.orders).items() if value}
        arguments = [json.dumps(orders), "serve"]
        arguments += ["--data", str(self.data), "--listen", self.address, *self.options]
        arguments += ["--http", self.http, "--ws", "off", "--log-level", self._log_level]
        with contextlib.ExitStack() as stack:
            log = 2 if self.log_path is None else stack.enter_context(self.log_path.open("ab"))
            self._process = Fork(PROGRAM, arguments, ROOT, log)

    def require_ready(self) -> None:
        """Waits until the node answers."""
        if not self.becomes_ready():
            raise NodeFailed(f"{self.name} has ended before it was ready:\n{self.log_tail()}")

    def becomes_ready(self) -> bool:
        """Waits until the node answers, and returns False if the process ends before that."""
        stdout = self._running().stdout
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([stdout], [], [], START_S)[0]:
                raise NodeFailed(f"{self.name} has not come up within {START_S:g} s:\n{self.log_tail()}")
            data = os.read(stdout.fileno(), 4096)
            if not data:
                return False
            line += data
        if not line.startswith(b"tailrace: ready, frames on "):
            raise NodeFailed(f"{self.name} says {line!r}:\n{self.log_tail()}")
        return True

    # Signals

    def signal(self, number: signal.Signals) -> None:
        """Sends the process a signal, unless it has ended."""
        process = self._process
        if process is not None:
            process.send_signal(number)

    def pause(self) -> None:
        """Sends SIGSTOP: the connections stay open, and the node says nothing."""
        self.signal(signal.SIGSTOP)
        self.is_paused = True

    def proceed(self) -> None:
        """Sends SIGCONT."""
        self.signal(signal.SIGCONT)
        self.is_paused = False

    # The disk. The orders have to name a ``disk_order``.

    def trouble_disk(self, trouble: str) -> None:
        """Lets the disk be in trouble (troubled_disk.py) until ``mend_disk``."""
        self.disk_trouble = trouble
        Path(self.orders.disk_order).write_text(trouble)

    def mend_disk(self) -> None:
        """Ends the disk's trouble. A node whose disk has failed has to be started again."""
        if self.disk_trouble:
            self.disk_trouble = ""
            Path(self.orders.disk_order).unlink()

    # The end

    def kill(self) -> None:
        """Sends SIGKILL, and waits for the end."""
        self.signal(signal.SIGKILL)
        self._require(self.wait(), -signal.SIGKILL)

    def stop(self) -> None:
        """Stops the node cleanly if it runs, after a check of its invariants."""
        if self.is_running:
            if self.is_paused:
                self.proceed()
            self.signal(signal.SIGTERM)
            self._require(self.wait(), 0)

    def died(self) -> bool:
        """Returns whether the process has died by SIGKILL, by itself; it is not running any more then."""
        if self._running().poll() is None:
            return False
        self._require(self.wait(), -signal.SIGKILL)
        return True

    def wait(self, timeout_s: float | None = STOP_S) -> int:
        """Waits for the end of the process, and returns its exit code."""
        process = self._running()
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.end_at_once()
            raise NodeFailed(f"{self.name} does not end:\n{self.log_tail()}") from None
        self._forget(process)
        return code

    def end_at_once(self) -> None:
        """Ends the process in whatever state it is, for instance after a test that has failed."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
            self._forget(process)

    def _forget(self, process: Fork) -> None:
        if self._process is process:
            self._process, self.is_paused = None, False
        process.close()

    def _require(self, code: int, expected: int) -> None:
        if code != expected:
            raise NodeFailed(f"{self.name} has ended with {code}, not {expected}:\n{self.log_tail()}")

    # Answers and logs

    async def ask(self, opcode: Opcode = Opcode.MEMBER, **value: Any) -> dict[str, Any] | None:
        """Returns the node's answer to a request between nodes; None if it does not answer, or refuses."""
        with contextlib.suppress(TailraceError):
            return await request.ask(Address(HOST, self.port), opcode, value, timeout_s=ASK_S)
        return None

    def log_tail(self) -> str:
        """Returns the last lines that the node has logged."""
        if self.log_path is None:
            return "(see its stderr)"
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return "\n".join(f"{self.name}: {line}" for line in lines[-15:])

    def check_log(self) -> None:
        """Raises NodeFailed if the node has logged an error that it did not expect."""
        assert self.log_path is not None
        text = self.log_path.read_text()
        found = [alarm for alarm in ALARMS if alarm in text]
        if found:
            at = text.index(found[0])
            raise NodeFailed(f"{self.name} has logged an error:\n{text[max(at - 1_000, 0) : at + 4_000]}")
