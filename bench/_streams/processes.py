"""Consumers in processes of their own: they say "ready", and later lines of what they have found.

They end by themselves at the end of their input.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from _server import cpu_seconds_of

# Nothing that is waited for here takes so long; what does has failed.
LINE_SECONDS_MAX = 300.0


class Helper:
    """A script of this folder, or one with its whole path, that runs.

    A thread takes its lines, so that it never waits for who reads them.
    """

    def __init__(self, script: str, *arguments: object) -> None:
        command = [sys.executable, str(Path(__file__).parent / script), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")

    def line(self) -> str:
        """Its next line."""
        line = self._lines.get(timeout=LINE_SECONDS_MAX)
        if not line:
            sys.exit(f"{self.process.args} has ended, with {self.process.wait()}")
        return line

    def has_line(self) -> bool:
        """``line`` would not wait."""
        return not self._lines.empty()

    def say(self, line: str) -> None:
        """Tells it something."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far."""
        return cpu_seconds_of(self.process.pid)


@contextlib.contextmanager
def helper(script: str, *arguments: object) -> Iterator[Helper]:
    """A script of this folder, once it has said that it is ready; ended on leaving."""
    made = Helper(script, *arguments)
    try:
        line = made.line()
        assert line == "ready", line
        yield made
    finally:
        made.process.terminate()
        made.process.communicate()
