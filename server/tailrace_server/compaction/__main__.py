"""``python -m tailrace_server.compaction``: one compaction in a process of its own, which a node starts.

    stdin    the task, one line of JSON; then, at any time, ``rate N``: at most N bytes a second, 0: no bound
    stdout   ``{"progress": bytes}`` at once and now and then; in the end ``{"result": ...}`` or ``{"error": ...}``
    stderr   whatever goes wrong otherwise

It yields to everything else on the machine. When stdin ends, so does the process, whatever it is doing: the node is
gone, or wants it no more. Then at most a file that ends in ``.new`` is left.
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
from tailrace_server.compaction.limiter import Limiter
from tailrace_server.compaction.task import LINE_BYTES_MAX, CompactionTask
from tailrace_server.compaction.worker import compact
from tailrace_server.host.disk import RealDisk
from tailrace_server.segment import SegmentDamaged

_STDIN, _STDOUT = 0, 1
_NICE = 10
_PROGRESS_SECONDS = 0.5
_EXIT_ABANDONED = 3


class Orders:
    """The lines of stdin, read from the descriptor: a thread in ``sys.stdin`` can't be left behind at the end."""

    def __init__(self, descriptor: int = _STDIN) -> None:
        self._descriptor = descriptor
        self._buffer = b""

    def next(self) -> bytes | None:
        """The next line without its end; None where there is none any more, or it is longer than anybody sends."""
        while b"\n" not in self._buffer:
            data = os.read(self._descriptor, 65_536)
            if not data or len(self._buffer) > LINE_BYTES_MAX:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class ProgressReport:
    """Says how many bytes have been read and written: after the first ones, and then now and then."""

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
    """Reads the task, does it, and says what came of it."""
    _yield_to_others()
    orders = Orders()
    line = orders.next()
    if line is None:
        os._exit(_EXIT_ABANDONED)
    limiter, progress = Limiter(0), ProgressReport()
    threading.Thread(target=_obey, args=(orders, limiter), daemon=True).start()

    def on_bytes(nbytes: int) -> None:
        progress(nbytes)
        limiter(nbytes)

    try:
        result = compact(CompactionTask.decode(line), RealDisk(), on_bytes)
    except (TailraceError, OSError) as error:
        say({"error": describe(error)})
    else:
        say({"result": json.loads(result.encode())})


def describe(error: TailraceError | OSError) -> dict[str, Any]:
    """What ``process.error_of`` makes an exception of again."""
    if isinstance(error, SegmentDamaged):
        return {"kind": "SegmentDamaged", "path": error.path, "offset": error.offset, "why": error.why}
    if isinstance(error, NoSpace):
        return {"kind": "NoSpace", "why": str(error)}
    if isinstance(error, OSError):
        return {"kind": "OSError", "errno": error.errno, "why": error.strerror, "path": error.filename}
    return {"kind": type(error).__name__, "why": str(error)}


def say(message: dict[str, Any]) -> None:
    """One line on stdout."""
    data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(_STDOUT, data) :]


def _obey(orders: Orders, limiter: Limiter) -> None:
    """Sets the rate as told; ends the process when nobody tells any more."""
    while (line := orders.next()) is not None:
        word, _, number = line.partition(b" ")
        if word == b"rate" and number.isdigit():
            limiter.set_rate(int(number))
    os._exit(_EXIT_ABANDONED)


def _yield_to_others() -> None:
    """The least claim on processor and disk that is not none at all: idle priority might never be served."""
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
