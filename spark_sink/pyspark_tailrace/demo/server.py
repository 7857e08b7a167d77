"""A server of the demonstration: ``tailrace serve`` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import trio

from pyspark_tailrace.demo.failure import DemoFailed, last_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# By this very Python, whatever the PATH has.
COMMAND = (sys.executable, "-c", "from tailrace.cli import main; main()")

HOST = "127.0.0.1"
READY = re.compile(r"tailrace: ready, frames on [^ ]*:(\d+),")

# A start is mostly imports; after a kill it reads the whole journal too, some 100 MB a second.
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0


class Server:
    """A server on ``data``; ``start``, ``kill`` and ``stop`` are for one task, ``watch`` for another.

    ``port`` 0 is any that is free. ``members`` are the addresses of the set that it belongs to, its own among them.
    """

    def __init__(self, data: Path, log: Path, port: int = 0, members: Sequence[str] = ()) -> None:
        self.data = data
        self.port = port
        self._log = log
        self._members = members
        self._process: trio.Process | None = None
        self._ended_by_us: trio.Process | None = None
        self._started = trio.Event()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"tailrace://{self.address}"

    @property
    def process_id(self) -> int | None:
        """Of the process that runs now, or ran last."""
        return None if self._process is None else self._process.pid

    @property
    def arguments(self) -> list[str]:
        """What ``tailrace`` is called with, but for what keeps it quiet."""
        members = ["--members", ",".join(self._members)] if self._members else []
        return ["serve", "--data", str(self.data), "--listen", self.address, *members]

    async def start(self) -> None:
        """Starts it; returns once it is ready. DemoFailed, with what it said, where it ends or takes too long."""
        command = [*COMMAND, *self.arguments, "--http", "off", "--ws", "off", "--log-level", "warning"]
        with self._log.open("ab") as log:
            self._process = await trio.lowlevel.open_process(
                command,
                # A copy: starting Spark in another thread changes the environment, and an exec that reads it meanwhile
                # fails with "Bad address".
                env=dict(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is for this process, which then stops the server in its turn.
                start_new_session=True,
            )
        line = ""
        with trio.move_on_after(START_TIMEOUT_S) as timeout:
            line = await self._first_line(self._process)
        ready = READY.match(line)
        if ready is None:
            why = f"was not ready within {START_TIMEOUT_S:g} s" if timeout.cancelled_caught else "could not start"
            raise DemoFailed(f"the server {why}{last_words(self._log)}")
        self.port = int(ready[1])
        self._started.set()

    async def watch(self) -> None:
        """Raises DemoFailed where the server ends without having been told to; else it never returns."""
        while True:
            await self._started.wait()
            self._started = trio.Event()
            process = self._process
            assert process is not None
            code = await process.wait()
            if process is not self._ended_by_us:
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                raise DemoFailed(f"the server {how}{last_words(self._log)}")

    async def kill(self) -> None:
        """Ends it by SIGKILL, at once: nothing runs between the call and the signal."""
        process = self._ended_by_us = self._process
        assert process is not None
        process.kill()
        await _wait(process)

    async def stop(self) -> None:
        """Stops it cleanly, where it runs. Not to be cancelled."""
        process = self._process
        if process is None:
            return
        self._ended_by_us = process
        with trio.CancelScope(shield=True):
            if process.poll() is None:
                process.terminate()
                with trio.move_on_after(STOP_TIMEOUT_S):
                    await process.wait()
                if process.poll() is None:
                    process.kill()
            await _wait(process)

    async def _first_line(self, process: trio.Process) -> str:
        assert process.stdout is not None
        line = b""
        while b"\n" not in line:
            data = await process.stdout.receive_some()
            if not data:
                break
            line += data
        return line.decode(errors="replace")


async def _wait(process: trio.Process) -> None:
    await process.wait()
    assert process.stdout is not None
    await process.stdout.aclose()
