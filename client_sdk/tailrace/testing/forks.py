"""Processes that are forks of a template, which has imported the server once for all of them.

The template is started in the background by `Forks.warm_up` or by the first fork. It gets requests through a socket.
It ends when this process does, also by SIGKILL.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

from tailrace.testing.template import LENGTH_BYTES, REQUEST_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# A process with threads cannot be forked safely, and these libraries start some when they are loaded.
_WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_TEMPLATE = "from tailrace.testing.template import main; main()"


class ForkFailed(Exception):
    """A process could not be started. The text has the reason."""


class Forks:
    """Starts processes as forks of one template. It may be used by several threads.

    Args:
        modules: The modules that the template imports. Each may have a function ``prepare()`` for what is loaded late.
        path: A folder that the template imports from, too; an empty string for none.
    """

    def __init__(self, modules: Sequence[str], path: str = "") -> None:
        self._modules = list(modules)
        self._path = path
        self._socket: socket.socket | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Starts the template unless it runs, and does not wait for its imports."""
        with self._lock:
            self._connect()

    def request(self, message: bytes, descriptors: Sequence[int]) -> None:
        """Sends a request to the template.

        Args:
            message: The request in JSON.
            descriptors: The pipes of the new process.

        Raises:
            ForkFailed: The request is too long, or the template has ended.
        """
        if len(message) > REQUEST_BYTES_MAX:
            raise ForkFailed(f"arguments and environment take {len(message):,} of {REQUEST_BYTES_MAX:,} bytes")
        with self._lock:
            connected = self._connect()
            try:
                socket.send_fds(connected, [len(message).to_bytes(LENGTH_BYTES, "big")], descriptors)
                connected.sendall(message)
            except OSError as error:
                raise ForkFailed(f"the process that nodes are forked from has ended: {error}") from error

    def _connect(self) -> socket.socket:
        """Returns the socket to the template of this process. A fork of this process gets another template."""
        if self._socket is None or self._owner != os.getpid():
            self._socket, self._owner = self._start(), os.getpid()
        return self._socket

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _TEMPLATE, str(theirs.fileno()), self._path, *self._modules],
                env={**os.environ, **_WITHOUT_THREADS},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal is for this process, which ends the others
            )
        atexit.register(_end, ours, process, os.getpid())
        return ours


def _end(connected: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    """Lets a template end, and waits for it, in the process that has started it."""
    if os.getpid() == owner:
        connected.close()
        process.wait()


class Fork:
    """A process, with those methods of `subprocess.Popen` that one needs.

    ``stdin`` and ``stdout`` are pipes. ``stderr`` is the file that was given, otherwise that of this process.

    Args:
        forks: The template.
        runs: The function that it calls with ``arguments``: "module:function".
        arguments: The arguments, as one list.
        cwd: Its working folder.
        stderr: A file or a descriptor.

    Raises:
        ForkFailed: The process could not be started.
    """

    def __init__(
        self, forks: Forks, runs: str, arguments: Sequence[str], cwd: Path, stderr: IO[bytes] | int = 2
    ) -> None:
        self.args = [runs, *arguments]
        self.returncode: int | None = None
        self._reading = threading.Lock()
        request = {"runs": runs, "arguments": [*arguments], "cwd": str(cwd), "environ": dict(os.environ)}
        ours, theirs = zip(*(os.pipe()[::step] for step in (-1, 1, 1)), strict=True)
        self.stdin, self.stdout, self._ending = (
            os.fdopen(descriptor, mode, 0) for descriptor, mode in zip(ours, ("wb", "rb", "rb"), strict=True)
        )
        try:
            stdin, stdout, ending = theirs
            errors = stderr if isinstance(stderr, int) else stderr.fileno()
            forks.request(json.dumps(request).encode(), [stdin, stdout, errors, ending])
        except BaseException:
            self._give_up()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        told = self._ending.readline().decode().strip()
        if not told.isdigit():
            self._give_up()
            raise ForkFailed(told or "the process that nodes are forked from has ended; its stderr may tell why")
        self.pid = int(told)

    def _give_up(self) -> None:
        for pipe in (self.stdin, self.stdout, self._ending):
            pipe.close()

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the process runs."""
        return self._read_ending(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end.

        Args:
            timeout: The longest wait in seconds; None for no limit.

        Returns:
            The exit code.

        Raises:
            subprocess.TimeoutExpired: The process still runs.
        """
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
        out: bytes = self.stdout.read()
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
                told = self._ending.readline()
                # Without a word the template has died, and its forks end with their stdin.
                self.returncode = int(told) if told else -signal.SIGKILL
                self._ending.close()
            return self.returncode
        finally:
            self._reading.release()
