"""``python -m tailrace_server.compaction``: runs one compaction, in a process that a node starts.

    stdin    the task, one line of JSON; then, at any time, ``rate N``: at most N bytes a second, 0: no limit
    stdout   ``{"progress": bytes}`` at once and repeatedly; at the end ``{"result": ...}`` or ``{"error": ...}``
    stderr   all other errors

It runs at a low priority, and at the lowest while it has a rate (``driver.py``), which the node sets while writes come
in. When stdin ends, the process ends at once, because the node has ended or has given it up. Then at most a file that
ends in ``.new`` is left.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import threading
import time
from typing import Any

from tailrace.errors import NoSpace, TailraceError
from tailrace_server.compaction.driver import Driver
from tailrace_server.compaction.limiter import Limiter
from tailrace_server.compaction.task import LINE_BYTES_MAX, CompactionResult, CompactionTask
from tailrace_server.compaction.worker import compact_in_steps
from tailrace_server.host.disk import RealDisk
from tailrace_server.segment import SegmentDamaged

_STDIN, _STDOUT = 0, 1
_NICE = 10
_PROGRESS_SECONDS = 0.5
_EXIT_ABANDONED = 3


class Orders:
    """Reads the lines of stdin from its descriptor: a thread in ``sys.stdin`` would block the end of the process."""

    def __init__(self, descriptor: int = _STDIN) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def next(self) -> bytes | None:
        """Returns the next line without its end; None at the end of stdin, or if the line is too long."""
        while b"\n" not in self._buffer:
            data = os.read(self._descriptor, 65_536)
            if not data or len(self._buffer) > LINE_BYTES_MAX:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class ProgressReport:
    """Reports the number of bytes read and written: after the first ones, and then every half second."""

    def __init__(self) -> None:
        self._bytes = 0
        self._said_at = -math.inf

    def __call__(self, nbytes: int) -> None:
        self._bytes += nbytes
        now = time.monotonic()
        if now - self._said_at >= _PROGRESS_SECONDS:
            self._said_at = now
            say({"progress": self._bytes})


def main() -> None:
    """Reads the task, runs it, and writes the result or the error."""
    _yield_to_others()
    orders = Orders()
    line = orders.next()
    if line is None:
        os._exit(_EXIT_ABANDONED)
    limiter, progress = Limiter(0), ProgressReport()

    def on_bytes(nbytes: int) -> None:
        progress(nbytes)
        limiter(nbytes)

    try:
        driver = Driver(compact_in_steps(CompactionTask.decode(line), RealDisk(), on_bytes))
        threading.Thread(target=_obey, args=(orders, limiter, driver), daemon=True).start()
        result = driver.run()
    except (TailraceError, OSError) as error:
        say({"error": describe(error)})
    else:
        say({"result": json.loads(result.encode())})


def describe(error: TailraceError | OSError) -> dict[str, Any]:
    """Returns the error as JSON, for ``process.error_of``."""
    if isinstance(error, SegmentDamaged):
        return {"kind": "SegmentDamaged", "path": error.path, "offset": error.offset, "why": error.why}
    if isinstance(error, NoSpace):
        return {"kind": "NoSpace", "why": str(error)}
    if isinstance(error, OSError):
        return {"kind": "OSError", "errno": error.errno, "why": error.strerror, "path": error.filename}
    return {"kind": type(error).__name__, "why": str(error)}


def say(message: dict[str, Any]) -> None:
    """Writes one line to stdout."""
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(_STDOUT, data) :]


def _obey(orders: Orders, limiter: Limiter, driver: Driver[CompactionResult]) -> None:
    """Sets the rate from stdin, and with it the priority. Ends the process at the end of stdin."""
    while (line := orders.next()) is not None:
        word, _, number = line.partition(b" ")
        if word == b"rate" and number.isdigit():
            driver.is_gentle = int(number) > 0  # before the rate: a thread that waits for it goes on
            limiter.set_rate(int(number))
    os._exit(_EXIT_ABANDONED)


def _yield_to_others() -> None:
    """Takes the lowest priority of processor and disk above idle, which might never be served."""
    os.nice(_NICE)
    ionice = shutil.which("ionice")
    if ionice is not None:
        command = [ionice, "-c", "2", "-n", "7", "-p", str(os.getpid())]
        with contextlib.suppress(OSError):
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
            )


if __name__ == "__main__":
    main()
