"""A node in a process of its own: started, stopped, killed, cut off, and set back to an older disk."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tailrace.testing.forks import Fork, ForkFailed, Forks
from tailrace.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HOST = "127.0.0.1"
# Far more seconds than these take on a busy machine.
START_S = 120.0
STOP_S = 120.0
LOG_LINES = 15
_LOOK_S = 0.001

_PROGRAM = "tailrace_server.testing.program"
FORKS = Forks([_PROGRAM])


class NodeFailed(AssertionError):
    """A node has not come up, or has ended in a way that was not expected. The text has the end of its log."""


class Node:
    """A node over a directory, in a process of its own. It keeps its port from one start to the next.

    `tailrace.testing.node` and the fixtures make nodes. All calls wait in the calling thread, so they can be used by
    plain tests and by tests of trio and asyncio alike. The process ends with the process of the test.

    Args:
        data: The data directory.
        port: The port; a free one by default.
        options: More options of ``tailrace serve``, such as ``["--auth"]``.
        log_path: The file for its log; by default beside the directory. The log of all starts is in one file.
        log_level: The level of the log.
        http: The address of HTTP; "off" by default.
        is_member: It is one of a set.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        log_path: Path | None = None,
        log_level: str = "warning",
        http: str = "off",
        is_member: bool = False,
    ) -> None:
        self.data = data
        self.name = data.name
        self.port = port or free_port()
        self.http = http
        self.options = list(options)
        self.log_path = log_path
        self.is_paused = False
        self.is_member = is_member
        self._log_level = log_level
        self._process: Fork | None = None
        self._ordering = threading.Lock()  # an answer is for the last order

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}{'' if self.is_running else ', stopped'}>"

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The URL for ``tailrace.connect``."""
        return f"tailrace://{self.address}"

    @property
    def pid(self) -> int:
        """The process."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """It was started, and was not ended. It may be paused, or have ended by itself."""
        return self._process is not None

    def _running(self) -> Fork:
        if self._process is None:
            raise NodeFailed(f"{self.name} does not run: start() starts it")
        return self._process

    # Start

    def start(self) -> None:
        """Starts the node. Returns when it answers.

        Raises:
            NodeFailed: It runs already, or has ended before it was ready.
        """
        if self.is_running:
            raise NodeFailed(f"{self.name} runs already")
        self.launch()
        self.require_ready()

    def launch(self) -> None:
        """Starts the process, and does not wait for it."""
        with contextlib.ExitStack() as stack:
            log = 2 if self.log_path is None else stack.enter_context(self.log_path.open("ab"))
            try:
                self._process = self._fork(log)
            except ForkFailed as error:
                raise NodeFailed(f"{self.name} cannot be started: {error}") from error

    def _fork(self, log: IO[bytes] | int) -> Fork:
        """Starts the process with this stderr."""
        return Fork(FORKS, f"{_PROGRAM}:main", self._arguments(), Path.cwd(), log)

    def _arguments(self) -> list[str]:
        arguments = ["--data", str(self.data), "--listen", self.address, *self.options]
        return [*arguments, "--http", self.http, "--ws", "off", "--log-level", self._log_level]

    def require_ready(self) -> None:
        """Waits until the node answers."""
        if not self.becomes_ready():
            self.wait()
            raise NodeFailed(f"{self.name} has ended before it was ready:\n{self.log_tail()}")

    def becomes_ready(self) -> bool:
        """Waits until the node answers, and returns False if the process ends before that."""
        line = self._read_line()
        if line and not line.startswith(b"tailrace: ready, frames on "):
            raise NodeFailed(f"{self.name} says {line!r}:\n{self.log_tail()}")
        return bool(line)

    def _read_line(self) -> bytes:
        """Returns the next line of stdout; no bytes if the process has ended."""
        stdout = self._running().stdout
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([stdout], [], [], START_S)[0]:
                raise NodeFailed(f"{self.name} has not answered within {START_S:g} s:\n{self.log_tail()}")
            data = os.read(stdout.fileno(), 4096)
            if not data:
                return b""
            line += data
        return line

    def order(self, order: str) -> str:
        """Gives the process an order (``tailrace_server.testing.program``), and returns its answer."""
        stdin = self._running().stdin
        with self._ordering:
            with contextlib.suppress(BrokenPipeError):
                stdin.write(f"{order}\n".encode())
            answer = self._read_line().decode().strip()
        if not answer:
            raise NodeFailed(f"{self.name} has ended by itself:\n{self.log_tail()}")
        return answer

    # Faults

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Cuts the node off from clients and from other members while the body runs.

        All connections break at once, those of HTTP and WebSocket too, and new ones end before the node has greeted.
        The node itself runs on, and forgets nothing.

        Raises:
            NodeFailed: The node does not run.
        """
        self.order("cut")
        try:
            yield
        finally:
            if self.is_running:
                self.order("heal")

    @contextlib.contextmanager
    def freeze(self) -> Iterator[None]:
        """Stops the process while the body runs: connections stay open, and no answer comes.

        Raises:
            NodeFailed: The node does not run.
        """
        self._running()
        self.pause()
        try:
            yield
        finally:
            self.proceed()

    @contextlib.contextmanager
    def lose_writes(self) -> Iterator[None]:
        """Loses everything that is written while the body runs, acknowledged or not, as an old disk does.

        After the body the node is killed, if it runs, gets its directory of before, and is started again. Programs that
        have seen a lost write get a `tailrace.Rollback`. If the body raises, nothing is lost.

        Raises:
            NodeFailed: The node does not run, or has not come up again.
            ValueError: The node is a member of a set, which loses writes as a whole.
        """
        if self.is_member:
            raise ValueError(f"{self.name} is a member of a set: call lose_writes() of the set")
        self._running()
        with self.old_disk() as put_back:
            yield
            if self.is_running:  # the body may have killed it
                self.kill()
            put_back()
            self.start()

    @contextlib.contextmanager
    def old_disk(self) -> Iterator[Callable[[], None]]:
        """Copies the directory as it is. Gives a function that puts the copy in its place, while the node is down."""
        with tempfile.TemporaryDirectory(prefix=f"{self.name}-old-", dir=self.data.parent) as folder:
            old = Path(folder) / "data"
            with self.freeze():
                shutil.copytree(self.data, old)

            def put_back() -> None:
                shutil.rmtree(self.data)
                old.rename(self.data)

            yield put_back

    # Signals

    def signal(self, number: signal.Signals) -> None:
        """Sends the process a signal, unless it has ended."""
        process = self._process
        if process is not None:
            process.send_signal(number)

    def pause(self) -> None:
        """Sends SIGSTOP: the connections stay open, and the node says nothing. Returns when the process has stopped."""
        self.signal(signal.SIGSTOP)
        self.is_paused = True
        while self.is_running and self._has_running_thread():
            time.sleep(_LOOK_S)

    def _has_running_thread(self) -> bool:
        """Tells whether a thread has not seen a SIGSTOP yet. Systems without /proc do not tell."""
        with contextlib.suppress(OSError):  # the process has ended
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                if (thread / "stat").read_text().rpartition(")")[2].split()[0] not in "TtZX":
                    return True
        return False

    def proceed(self) -> None:
        """Sends SIGCONT."""
        self.signal(signal.SIGCONT)
        self.is_paused = False

    # The end

    def kill(self) -> None:
        """Kills the node by SIGKILL, and waits for its end. `start` starts it again, on the same data and port.

        Raises:
            NodeFailed: It does not run, or has ended by itself.
        """
        self._running()
        self.signal(signal.SIGKILL)
        self._require(self.wait(), -signal.SIGKILL)

    def stop(self) -> None:
        """Stops the node cleanly if it runs, after a check of its invariants.

        Raises:
            NodeFailed: It has ended with an error.
        """
        if self.is_running:
            if self.is_paused:
                self.proceed()
            self.signal(signal.SIGTERM)
            self._require(self.wait(), 0)

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

    def log_tail(self) -> str:
        """Returns the last lines that the node has logged."""
        if self.log_path is None:
            return "(see its stderr)"
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return "\n".join(f"{self.name}: {line}" for line in lines[-LOG_LINES:])
