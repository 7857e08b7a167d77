"""Runs a server of the demonstration: ``tailrace serve`` in its own process."""

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

# Run by this Python, whatever the PATH has.
COMMAND = (sys.executable, "-c", "from tailrace.cli import main; main()")

HOST = "127.0.0.1"
READY = re.compile(r"tailrace: ready, frames on [^ ]*:(\d+),")

# A start is mostly imports. After a kill it also reads the whole journal, at some 100 MB/s.
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0


class Server:
    """A server on ``data``; ``start``, ``kill`` and ``stop`` are for one task, ``watch`` for another.

    ``port`` 0 stands for any free port. ``members`` are the addresses of all members of its set.
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
        """The address of its listener, HOST:PORT."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"tailrace://{self.address}"

    @property
    def process_id(self) -> int | None:
        """The id of the process that runs now, or ran last; None before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def arguments(self) -> list[str]:
        """The arguments of ``tailrace``, without those that keep it quiet."""
        members = ["--members", ",".join(self._members)] if self._members else []
        return ["serve", "--data", str(self.data), "--listen", self.address, *members]

    async def start(self) -> None:
        """Starts it, and returns when it is ready. Raises DemoFailed, with its log, if it ends or takes too long."""
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
                # Ctrl-C is only for this process, which then stops the server.
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
        """Raises DemoFailed if the server ends by itself; otherwise it never returns."""
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
        """Ends it by SIGKILL at once, without a checkpoint before the signal."""
        process = self._ended_by_us = self._process
        assert process is not None
        process.kill()
        await _wait(process)

    async def stop(self) -> None:
        """Stops it cleanly if it runs. Shielded from cancellation."""
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
