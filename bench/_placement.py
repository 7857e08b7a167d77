"""Where a client and its server run: where the scheduler puts them, on one processor, or on processors of their own.

A message to another processor has to wake it if it sleeps. In a virtual machine this takes the host's help, and a round
trip does it twice. The scheduler puts some pairs of processes on one processor, and others on two, by rules that have
nothing to do with what the programs do. So a ratio of two round trips says little without this.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Names of placements, as the tables have them.
FREE, ONE, OWN = "where the scheduler puts them", "on one processor", "on processors of their own"


class Placement(NamedTuple):
    """A name, and the processors on which client and servers may run."""

    name: str
    client: frozenset[int]
    server: frozenset[int]


def placements(processors: Iterable[int]) -> list[Placement]:
    """Returns those that are possible on these processors; the one of the scheduler is the first."""
    every = sorted(processors)
    found = [Placement(FREE, frozenset(every), frozenset(every))]
    if len(every) > 1:
        found.append(Placement(ONE, frozenset(every[:1]), frozenset(every[:1])))
        found.append(Placement(OWN, frozenset(every[:1]), frozenset(every[1:2])))
    return found


def missing(processors: Iterable[int] | None) -> str:
    """Returns why only the scheduler's placement is possible; empty if all are. None: this system pins no process."""
    if processors is None:
        return "this system cannot pin processes to processors"
    return "" if len(set(processors)) > 1 else "there is one processor only"


def own_processors() -> frozenset[int] | None:
    """Returns the processors on which this process may run; None if the system does not tell, or pins none."""
    if not hasattr(os, "sched_setaffinity") or not os.path.isdir("/proc/self/task"):
        return None
    return frozenset(os.sched_getaffinity(0))


@contextlib.contextmanager
def placed(placement: Placement, servers: Sequence[int]) -> Iterator[None]:
    """Pins this process and those of ``servers`` while the body runs. Their new threads go where the old ones are."""
    if placement.name == FREE:
        yield
        return
    pids = {os.getpid(): placement.client} | dict.fromkeys(servers, placement.server)
    before = {pid: os.sched_getaffinity(pid) for pid in pids}
    try:
        for pid, processors in pids.items():
            _pin(pid, processors)
        yield
    finally:
        for pid, processors in before.items():
            _pin(pid, processors)


def _pin(pid: int, processors: Iterable[int]) -> None:
    """Pins all threads of a process."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process is gone
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
                os.sched_setaffinity(int(thread), processors)


def processor_of(pid: int | str) -> int:
    """Returns the processor on which the first thread of a process is, or was last; "self" is this process."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])
    return -1
