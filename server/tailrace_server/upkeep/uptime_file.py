"""UPTIME: the runs of the node, kept from one start to the next (uptime.py)."""

from __future__ import annotations

import logging

from tailrace_server.host.clock import Clock
from tailrace_server.host.disk import Disk, read_file, write_atomically
from tailrace_server.sealed import seal, unseal
from tailrace_server.upkeep.uptime import Run, Uptime

log = logging.getLogger("tailrace.server")

FILE_NAME = "UPTIME"
FORMAT = "tailrace uptime"
VERSION = 1


def load_uptime(disk: Disk, directory: str, clock: Clock) -> Uptime:
    """The runs that UPTIME tells of, and one that begins now. Without a good file nothing earlier is vouched for."""
    path = f"{directory}/{FILE_NAME}"
    earlier: list[Run] = []
    if disk.exists(path):
        try:
            runs = unseal(read_file(disk, path), FORMAT, VERSION)["runs"]
            earlier = [Run(int(began_us), int(up_us)) for began_us, up_us in runs]
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be used (%s): ages count from now on only", path, error)
    return Uptime(earlier, clock.wall_us(), _monotonic_us(clock))


def tick_uptime(uptime: Uptime, clock: Clock) -> None:
    """Now it is so late."""
    was = uptime.suspended
    uptime.tick(clock.wall_us(), _monotonic_us(clock))
    if uptime.suspended and not was:
        log.error("%s: nothing is dropped for its age until the node is restarted", uptime.suspended)


def store_uptime(uptime: Uptime, disk: Disk, directory: str) -> None:
    """Writes UPTIME; blocks. OSError: the old one is still there."""
    write_atomically(disk, f"{directory}/{FILE_NAME}", seal(FORMAT, VERSION, {"runs": [[*run] for run in uptime.runs]}))


def _monotonic_us(clock: Clock) -> int:
    return int(clock.monotonic() * 1e6)
