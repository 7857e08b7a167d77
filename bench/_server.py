"""A node in a process of its own (``tailrace serve``), and what /proc says of it and of its compactions."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import trio

import tailrace

PROGRAM = str(Path(sys.executable).with_name("tailrace"))
SAMPLES_PER_SECOND = 10
_STOP_SECONDS_MAX = 120


class Server:
    """A running node. Port 0 is one of its own choice; ``started`` is when its process was started.

    ``options``: more of the command line. ``program``: what runs the command line.
    """

    def __init__(
        self, folder: Path, log: Path, port: int = 0, options: Sequence[str] = (), program: Sequence[str] = (PROGRAM,)
    ) -> None:
        command = [*program, "serve", "--data", str(folder), "--listen", f"127.0.0.1:{port}", "--http", "off"]
        command += ["--ws", "off", *options]
        self.folder = folder
        self.options = options
        self._log = log.open("ab")
        self.started = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"frames on \S+:(\d+)", line)
        if found is None:
            sys.exit(f"the node did not start; its log {log} ends:\n{log.read_text()[-2_000:]}")
        self.port = int(found[1])
        self.address = f"tailrace://127.0.0.1:{found[1]}"
        websockets = re.search(r"ws on \S+:(\d+)", line)
        self.ws_port = int(websockets[1]) if websockets else 0

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def stop(self) -> None:
        """A clean stop, as by SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a power cut takes it, but that the system still writes what it was given."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(_STOP_SECONDS_MAX)
        self._log.close()

    @property
    def compactions(self) -> list[int]:
        """The ids of the processes that compact right now."""
        return children_of(self.process.pid)

    def cpu_seconds(self) -> float:
        """Processor time of the node so far, without its compactions: on a busy machine it says more than the clock."""
        return cpu_seconds_of(self.process.pid)

    def memory_bytes(self) -> int:
        """What the node holds in memory of its own now (RssAnon)."""
        return _number(f"/proc/{self.process.pid}/status", "RssAnon") * 1024

    def written_bytes(self) -> int:
        """What the node and its compactions have had written to disk so far (write_bytes of /proc/PID/io).

        The system adds what an ended child has done to its parent's account.
        """
        return sum(map(self.written_bytes_of, (self.process.pid, *self.compactions)))

    def read_bytes(self) -> int:
        """What the node has had read from the disk so far, not from the system's cache."""
        return _number(f"/proc/{self.process.pid}/io", "read_bytes")

    @staticmethod
    def written_bytes_of(pid: int) -> int:
        """The same of one process and its ended children."""
        return _number(f"/proc/{pid}/io", "write_bytes")


class Sample(NamedTuple):
    """A moment: seconds (perf_counter), rows so far, RssAnon in bytes of the node, and of its compactions."""

    at: float
    rows: int
    node: int
    compactions: int


class Watch:
    """Samples a node's memory in a thread of its own while its body runs."""

    def __init__(self, server: Server, rows: Callable[[], int] = lambda: 0) -> None:
        self._server = server
        self._rows = rows
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            node, *others = (
                _number(f"/proc/{pid}/status", "RssAnon") * 1024
                for pid in (self._server.process.pid, *self._server.compactions)
            )
            self.samples.append(Sample(time.perf_counter(), self._rows(), node, sum(others)))
            if self._ended.wait(1 / SAMPLES_PER_SECOND):
                return


async def at_rest(client: tailrace.Client, server: Server, seconds: float = 3.0) -> dict[str, Any]:
    """Waits until nothing has been flushed or compacted for so long; the status then."""
    since, before = time.perf_counter(), None
    while True:
        details = (await client.status()).details
        storage = details["storage"]
        done = (storage["flushes"], storage["compactions"], bool(server.compactions))
        if done != before or server.compactions:
            since, before = time.perf_counter(), done
        elif time.perf_counter() - since > seconds:
            return details
        await trio.sleep(0.2)


def free_port() -> int:
    """Returns a port of loopback that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def children_of(pid: int) -> list[int]:
    """Returns the ids of the processes that a process has made and that run."""
    with contextlib.suppress(OSError):
        tasks = os.listdir(f"/proc/{pid}/task")
        return [int(child) for task in tasks for child in _read(f"/proc/{pid}/task/{task}/children").split()]
    return []


def cpu_seconds_of(pid: int) -> float:
    """Processor time of a process so far, of all its threads; 0 where it is gone."""
    # The clock of another process, as clock_getcpuclockid(3) of Linux makes its number: /proc counts in 10 ms.
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)
    return 0.0


class Processor(NamedTuple):
    """Seconds of processor time of a process and its ended children, such as a node's compactions; in 10 ms."""

    user: float
    system: float

    @classmethod
    def of(cls, pid: int) -> Processor:
        """Until now."""
        ticks = [int(field) for field in _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[11:15]]
        unit = os.sysconf("SC_CLK_TCK")
        return cls((ticks[0] + ticks[2]) / unit, (ticks[1] + ticks[3]) / unit)

    @classmethod
    def ended(cls, pid: int) -> Processor:
        """Of its ended children only."""
        ticks = [int(field) for field in _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[13:15]]
        unit = os.sysconf("SC_CLK_TCK")
        return cls(ticks[0] / unit, ticks[1] / unit)

    def since(self, before: Processor) -> Processor:
        """The time between the two."""
        return Processor(self.user - before.user, self.system - before.system)


class Stolen:
    """What the machine's host has taken of its processors for others since this was made."""

    def __init__(self) -> None:
        self._stolen, self._all = self._now()

    @staticmethod
    def _now() -> tuple[int, int]:
        fields = [int(field) for field in _read("/proc/stat").partition("\n")[0].split()[1:9]]
        return fields[7], sum(fields)

    @property
    def share(self) -> float:
        """From 0 to 1."""
        stolen, total = self._now()
        return (stolen - self._stolen) / max(total - self._all, 1)


def bytes_on_disk(folder: Path) -> dict[str, int]:
    """What the files below take up on disk, by what they are: the first folder's name, or the file's."""
    found: dict[str, int] = {}
    for path in folder.rglob("*"):
        if path.is_file():
            kind = path.relative_to(folder).parts[0]
            found[kind] = found.get(kind, 0) + path.stat().st_blocks * 512
    return found


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return ""


def _number(path: str, name: str) -> int:
    """The number behind ``name:`` in a file of /proc; 0 where the process is gone."""
    found = re.search(rf"^{name}:\s*(\d+)", _read(path), re.MULTILINE)
    return int(found[1]) if found else 0
