"""Runs a compaction in another process, from the node.

A process and not a thread, because it computes for seconds, much of it in Python, and a thread would block the loop. A
process also returns its memory, and can be killed at any moment.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import NoSpace
from tailrace_server.compaction.errors import BadTask, CompactionFailed
from tailrace_server.compaction.task import LINE_BYTES_MAX, CompactionResult
from tailrace_server.compaction.worker import discard
from tailrace_server.host.disk import RealDisk
from tailrace_server.segment import SegmentDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace_server.compaction.task import CompactionTask

# -P: do not import from the folder in which the node was started.
COMMAND = (sys.executable, "-P", "-m", "tailrace_server.compaction")
# The end of stderr of a crashed process, in which Python names the error.
STDERR_BYTES_MAX = 8_192


class Rate:
    """The rate of compactions in bytes a second, 0: no limit. Several compactions may share an object."""

    def __init__(self, value: int = 0) -> None:
        self._value = value
        self._changed = trio.Event()

    @property
    def value(self) -> int:
        """The present rate."""
        return self._value

    def set(self, value: int) -> None:
        """Changes the rate. Running compactions follow at once."""
        if value == self._value:
            return
        self._value = value
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self) -> None:
        """Waits for the next change."""
        await self._changed.wait()


async def run_compaction(
    task: CompactionTask,
    rate: Rate,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
    command: Sequence[str] = COMMAND,
) -> CompactionResult:
    """Runs ``task`` in a separate process, at most at the present ``rate``.

    Calls ``on_progress`` with the total of bytes read and written, after the first ones and then repeatedly. If it is
    cancelled or fails, it kills the process and removes its files before it returns, so nothing else may use the task's
    output path. Raises as ``worker.compact``, and CompactionFailed, with stderr, if the process crashes.
    """
    line = task.encode()
    process = await trio.lowlevel.open_process(
        command,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C is only for the node, which then ends the compaction. It has no session of its own: Linux gives each
        # session the same share of the processors (autogroup), and a priority counts only inside of one.
        process_group=0,
    )
    talk = _Talk(process, rate, on_progress)
    try:
        await talk.until_the_end(line)
        return talk.result()
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)
            if not talk.succeeded:
                # Removing a large file takes time, so it runs in a thread.
                await trio.to_thread.run_sync(discard, task, RealDisk())


def environment() -> dict[str, str]:
    """Returns the environment of the process: a copy, because exec fails if another thread changes the original.

    It also keeps numpy's linear algebra from starting a useless thread for each processor.
    """
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1"}


def error_of(description: dict[str, Any]) -> Exception:
    """Returns the exception that the process has described."""
    kind, why = description.get("kind"), str(description.get("why"))
    if kind == "SegmentDamaged":
        return SegmentDamaged(str(description["path"]), int(description["offset"]), why)
    if kind == "NoSpace":
        return NoSpace(why)
    if kind == "OSError":
        return OSError(description["errno"], why, description["path"])
    if kind == "BadTask":
        return BadTask(why)
    return CompactionFailed(f"the compaction failed, {kind}: {why}")


class _Talk:
    """The messages between the node and the process."""

    def __init__(self, process: trio.Process, rate: Rate, on_progress: Callable[[int], None]) -> None:
        self._process = process
        self._rate = rate
        self._on_progress = on_progress
        self._answer: dict[str, Any] = {}
        self._complaints = b""
        self.succeeded = False

    async def until_the_end(self, task: bytes) -> None:
        """Sends the task and each new rate, and reads the answers until the process has ended."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell, task)
            async with trio.open_nursery() as listening:
                listening.start_soon(self._listen)
                listening.start_soon(self._gather_complaints)
            nursery.cancel_scope.cancel()
        await self._process.wait()

    def result(self) -> CompactionResult:
        """Returns the result, or raises the error of the compaction."""
        if "result" in self._answer:
            result = CompactionResult.decode(json.dumps(self._answer["result"]))
            self.succeeded = True
            return result
        if "error" in self._answer:
            raise error_of(self._answer["error"])
        said = self._complaints.decode(errors="replace").strip() or "nothing"
        raise CompactionFailed(f"the process of a compaction {how_it_ended(self._process.returncode)}; stderr: {said}")

    async def _tell(self, task: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            await stdin.send_all(task + b"\n")
            told = 0
            while True:
                if self._rate.value != told:
                    told = self._rate.value
                    await stdin.send_all(b"rate %d\n" % told)
                else:
                    await self._rate.changed()
        except trio.BrokenResourceError:
            return  # it has ended; the other tasks find the reason

    async def _listen(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        buffer = b""
        async for data in stdout:
            *lines, buffer = (buffer + bytes(data)).split(b"\n")
            strange = next(itertools.filterfalse(self._understand, lines), None)
            if strange is None and len(buffer) > LINE_BYTES_MAX:
                strange = buffer
            if strange is not None:
                why = f"it wrote {strange[:200]!r}, which is no message of a compaction"
                self._answer = {"error": {"kind": "ProtocolError", "why": why}}
                self._process.kill()
                return

    def _understand(self, line: bytes) -> bool:
        """Handles a line; returns False if it is no message of a compaction."""
        try:
            message = json.loads(line)
        except ValueError:
            return False
        if not isinstance(message, dict) or len(message) != 1:
            return False
        [(kind, value)] = message.items()
        if kind == "progress" and isinstance(value, int):
            self._on_progress(value)
        elif kind in ("result", "error") and isinstance(value, dict):
            self._answer = message
        else:
            return False
        return True

    async def _gather_complaints(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        async for data in stderr:
            self._complaints = (self._complaints + bytes(data))[-STDERR_BYTES_MAX:]


async def _end(process: trio.Process) -> None:
    """Kills the process if it runs, and closes its pipes."""
    if process.poll() is None:
        process.kill()
    await process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            await pipe.aclose()


def how_it_ended(code: int | None) -> str:
    """Returns the end of a process in words, from its exit code."""
    if code is not None and code < 0:
        return f"was ended by signal {-code} ({signal.strsignal(-code)})"
    return f"ended with exit code {code}"
