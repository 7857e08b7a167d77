"""Starts processes of the product as forks of one that has imported it: an import takes longer than most starts.

The tests' process starts one server of forks, at its first call, and sends it a request for each process: what it runs,
its working folder and environment, and the descriptors of its pipes. A fork runs what a new interpreter would run, and
ends as one would. The server waits for the forks, since they are its children, and tells the tests how each has ended.
It ends with the tests' process.

    python -m tests.processes.forks 7      (7: the descriptor of a socket with the requests)
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]
REQUEST_BYTES_MAX = 128 * 1024
# What a process can run: a node that is ordered (`program`), or the command `tailrace`.
PROGRAM, COMMAND = "program", "command"


class Fork:
    """A process, with the methods of `subprocess.Popen` that the tests use.

    ``stdin`` and ``stdout`` are pipes. ``stderr`` is the file that was given, otherwise that of the tests.
    """

    def __init__(self, what: str, arguments: Sequence[str], cwd: Path, stderr: IO[bytes] | int = 2) -> None:
        sys.audit("subprocess.Popen", sys.executable, arguments, cwd, None)  # for `tiers`
        self.args = [what, *arguments]
        self.returncode: int | None = None
        self._reading = threading.Lock()
        request = json.dumps({"what": what, "arguments": [*arguments], "cwd": str(cwd), "environ": dict(os.environ)})
        ours, theirs = zip(*(os.pipe()[::step] for step in (-1, 1, 1)), strict=True)
        try:
            stdin, stdout, ending = theirs
            errors = stderr if isinstance(stderr, int) else stderr.fileno()
            socket.send_fds(_server(), [request.encode()], [stdin, stdout, errors, ending])
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.stdin, self.stdout, self._ending = (
            os.fdopen(descriptor, mode, 0) for descriptor, mode in zip(ours, ("wb", "rb", "rb"), strict=True)
        )
        self.pid = int(self._ending.readline())

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the process runs."""
        return self._read_ending(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end, and returns the exit code. subprocess.TimeoutExpired."""
        code = self._read_ending(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Sends the process a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL, unless the process has ended."""
        self.send_signal(signal.SIGKILL)

    def finish(self) -> bytes:
        """Closes stdin, waits for the end, and returns what came on stdout."""
        self.stdin.close()
        out = self.stdout.read()
        self.wait()
        self.close()
        return out

    def close(self) -> None:
        """Closes the pipes."""
        for pipe in (self.stdin, self.stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read_ending(self, timeout: float | None) -> int | None:
        """Returns the exit code, or None after ``timeout`` seconds. One thread reads, and the others wait for it."""
        if not self._reading.acquire(timeout=-1 if timeout is None else timeout):
            return self.returncode
        try:
            if self.returncode is None:
                with selectors.DefaultSelector() as selector:
                    selector.register(self._ending, selectors.EVENT_READ)
                    if not selector.select(timeout):
                        return None
                self.returncode = int(self._ending.readline())
                self._ending.close()
            return self.returncode
        finally:
            self._reading.release()


@cache
def _server() -> socket.socket:
    """Starts the server of this process, and returns the socket to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.forks", str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process with threads cannot be forked safely
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


# The server


def serve(requests: socket.socket) -> Callable[[], object] | None:
    """Forks for each request. Returns in a fork, with what it is to run, and in the server at the end, with None."""
    endings: dict[int, int] = {}
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 4096)
                _tell_endings(endings)
            if requests not in ready:
                continue
            data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
            if not data:
                return None
            *pipes, ending = descriptors
            pid = os.fork()
            if pid == 0:
                break
            endings[pid] = ending
            os.write(ending, b"%d\n" % pid)
            for pipe in pipes:
                os.close(pipe)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for descriptor in (requests.detach(), woken, wakes, ending, *endings.values()):
        os.close(descriptor)
    return _becomes(json.loads(data), pipes)


def _tell_endings(endings: dict[int, int]) -> None:
    while endings:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with open(endings.pop(pid), "wb", 0) as ending, contextlib.suppress(BrokenPipeError):
            ending.write(b"%d\n" % os.waitstatus_to_exitcode(status))


def _becomes(request: dict[str, Any], pipes: list[int]) -> Callable[[], object]:
    """Makes this fork what a new process would be, and returns what it runs."""
    import trio

    from . import program

    for number, pipe in enumerate(pipes):
        os.dup2(pipe, number)
        os.close(pipe)
    # Those of the server may think that they can seek.
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    errors = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(errors, errors="backslashreplace", line_buffering=True)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    random.seed()
    trio._core._run._r.seed()
    arguments = request["arguments"]
    if request["what"] == PROGRAM:
        return lambda: program.main(program.Orders(**json.loads(arguments[0])), arguments[1:])
    sys.argv = ["tailrace", *arguments]
    return program.cli.main


def _import_all() -> None:
    """Imports what forks run, also what the product imports late."""
    from tailrace.cli.commands import run

    from . import program  # noqa: F401 - the forks have it

    for command in entry_points(group="tailrace.commands"):
        if command.name != "demo":
            with contextlib.suppress(ImportError):  # an installation may know commands of other commits
                command.load()
    with contextlib.redirect_stderr(io.StringIO()):
        run(["verify"])  # has no argument, and fails when the parser has been loaded
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serves until the tests end, or runs what was requested if this is a fork."""
    _import_all()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        run = serve(requests)
    if run is not None:
        run()


if __name__ == "__main__":
    main()
