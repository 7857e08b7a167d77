"""UPTIME: the runs of the node, kept from one start to the next (state/uptime.py), and its marks (state/ahead.py)."""

from __future__ import annotations

import logging

from tailrace_server.directory.sealed import seal, unseal
from tailrace_server.host.clock import Clock
from tailrace_server.host.disk import Disk, read_file, write_atomically
from tailrace_server.state.ahead import Ahead
from tailrace_server.state.uptime import NodeRun, Uptime

log = logging.getLogger("tailrace.server")

FILE_NAME = "UPTIME"
FORMAT = "tailrace uptime"
VERSION = 1


def load_uptime(disk: Disk, directory: str, clock: Clock) -> Uptime:
    """The runs that UPTIME tells of, and one that begins now. Without a good file nothing earlier is vouched for."""
    path = f"{directory}/{FILE_NAME}"
    earlier, ahead, monotonic_us = list[NodeRun](), Ahead(), monotonic_us_of(clock)
    if disk.exists(path):
        try:
            earlier, ahead = decode(read_file(disk, path), monotonic_us)
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used (%s): ages count from now on only", path, error)
    return Uptime(earlier, clock.wall_us(), monotonic_us, ahead)


def decode(data: bytes, monotonic_us: int) -> tuple[list[NodeRun], Ahead]:
    """What the content of UPTIME tells, for a run that begins at ``monotonic_us``. ValueError says what is wrong."""
    members = unseal(data, FORMAT, VERSION)
    try:
        earlier = [NodeRun(int(began_us), int(up_us)) for began_us, up_us in members["runs"]]
        # Without the member it was written before there were marks.
        return earlier, Ahead.from_json(members.get("ahead", []), monotonic_us)
    except (KeyError, TypeError) as error:
        raise ValueError(f"its members are not those of UPTIME: {error!r}") from None


def tick_uptime(uptime: Uptime, clock: Clock) -> None:
    """Now it is so late."""
    was = uptime.suspended
    uptime.tick(clock.wall_us(), monotonic_us_of(clock))
    if uptime.suspended and not was:
        log.error("%s: nothing is dropped for its age until the node is restarted", uptime.suspended)


def store_uptime(uptime: Uptime, disk: Disk, directory: str) -> None:
    """Writes UPTIME; blocks. OSError: the old one is still there."""
    write_atomically(disk, f"{directory}/{FILE_NAME}", encode(uptime))


def encode(uptime: Uptime) -> bytes:
    """The content of UPTIME, as of the last tick. Any thread may call it."""
    members = {"runs": [[*run] for run in uptime.runs], "ahead": uptime.ahead.to_json(uptime.now_us)}
    return seal(FORMAT, VERSION, members)


def monotonic_us_of(clock: Clock) -> int:
    """The monotonic clock in microseconds."""
    return int(clock.monotonic() * 1e6)
