"""Measures the memory of this process and of all that it has started, while they run.

Linux only; other systems have no /proc, so nothing is measured. A process counts with its proportional share (PSS): if
n processes share a page, each counts one n-th, so the sum is the machine's memory. Otherwise Spark's Python workers,
which are forks, would count most of their memory several times.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

PROC = Path("/proc")

SERVER = "the servers"
SPARK = "Spark's Java machine"
WORKERS = "Spark's Python workers"
GIT = "git"
HERE = "this process: producer, follower, index"
OTHERS = "others"


class Process(NamedTuple):
    """A running process, with the kernel's ``name`` for it."""

    id: int
    parent: int
    name: str


class MemoryMeter:
    """The peaks of the samples, in bytes: of each role, and of all roles at one moment."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._self = os.getpid()
        self.peaks: dict[str, int] = {}
        self.peak_total = 0

    def sample(self, servers: Collection[int] = ()) -> None:
        """Measures every process once. ``servers`` are the servers' process ids."""
        totals: dict[str, int] = {}
        for process, role in roles(read_processes(self._proc), self._self, servers).items():
            totals[role] = totals.get(role, 0) + read_memory_bytes(self._proc, process)
        for role, nbytes in totals.items():
            self.peaks[role] = max(self.peaks.get(role, 0), nbytes)
        self.peak_total = max(self.peak_total, sum(totals.values()))


def roles(processes: list[Process], root: int, servers: Collection[int]) -> dict[int, str]:
    """Returns the roles of ``root`` and its descendants, by process id."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found = {process.id: HERE for process in processes if process.id == root}
    waiting = deque(found)
    while waiting:
        parent = waiting.popleft()
        for child in children.get(parent, []):
            found[child.id] = _role(child, found[parent], servers)
            waiting.append(child.id)
    return found


def _role(process: Process, parent_role: str, servers: Collection[int]) -> str:
    if process.id in servers:
        return SERVER
    if process.name == "java":
        return SPARK
    if parent_role in (SPARK, WORKERS):
        return WORKERS
    if process.name == "git" or parent_role == GIT:
        return GIT
    # Between fork and exec a child is a copy of its parent, and shares all of its memory.
    return parent_role if parent_role == SERVER else OTHERS


def read_processes(proc: Path) -> list[Process]:
    """Returns all processes of the machine, or an empty list if it does not show them."""
    try:
        names = [name for name in os.listdir(proc) if name.isdecimal()]
    except OSError:
        return []
    found = []
    for name in names:
        try:
            found.append(parse_stat((proc / name / "stat").read_text(errors="replace")))
        except OSError:  # it has ended meanwhile
            continue
    return found


def parse_stat(text: str) -> Process:
    """Parses a line of /proc/PID/stat. The name, in parentheses, may have any characters.

    >>> parse_stat("42 (a (b) c) S 7 42 42 0 -1")
    Process(id=42, parent=7, name='a (b) c')
    """
    number, _, rest = text.partition(" (")
    name, _, fields = rest.rpartition(") ")
    return Process(int(number), int(fields.split()[1]), name)


def read_memory_bytes(proc: Path, process: int) -> int:
    """Returns the proportional share of a process, or its resident memory on older kernels; 0 if it has ended."""
    for file, field in (("smaps_rollup", "Pss:"), ("status", "VmRSS:")):
        try:
            text = (proc / str(process) / file).read_text()
        except OSError:
            continue
        kib = parse_kib(text, field)
        if kib is not None:
            return kib * 1024
    return 0


def parse_kib(text: str, field: str) -> int | None:
    """Returns a field of such a file, in KiB, or None if the file does not have it."""
    for line in text.splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    return None
