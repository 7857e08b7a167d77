"""UPTIME: the file with the runs of the node (state/uptime.py) and its marks (state/ahead.py)."""

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
    """Returns the runs of UPTIME, and one that begins now. Without a good file there are no earlier runs."""
    path = f"{directory}/{FILE_NAME}"
    earlier, ahead, monotonic_us = list[NodeRun](), Ahead(), monotonic_us_of(clock)
    if disk.exists(path):
        try:
            earlier, ahead = decode(read_file(disk, path), monotonic_us)
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used (%s): ages count from now on only", path, error)
    return Uptime(earlier, clock.wall_us(), monotonic_us, ahead)


def decode(data: bytes, monotonic_us: int) -> tuple[list[NodeRun], Ahead]:
    """Decodes UPTIME, for a run that begins at ``monotonic_us``. Raises ValueError with the reason."""
    members = unseal(data, FORMAT, VERSION)
    try:
        earlier = [NodeRun(int(began_us), int(up_us)) for began_us, up_us in members["runs"]]
        # Earlier versions wrote no marks.
        return earlier, Ahead.from_json(members.get("ahead", []), monotonic_us)
    except (KeyError, TypeError) as error:
        raise ValueError(f"its members are not those of UPTIME: {error!r}") from None


def tick_uptime(uptime: Uptime, clock: Clock) -> None:
    """Advances the uptime to the clock's present time, and logs an error if it stops counting."""
    was = uptime.suspended
    uptime.tick(clock.wall_us(), monotonic_us_of(clock))
    if uptime.suspended and not was:
        log.error("%s: nothing is dropped for its age until the node is restarted", uptime.suspended)


def store_uptime(uptime: Uptime, disk: Disk, directory: str) -> None:
    """Writes UPTIME; blocks. If it raises OSError, the old file is unchanged."""
    write_atomically(disk, f"{directory}/{FILE_NAME}", encode(uptime))


def encode(uptime: Uptime) -> bytes:
    """Returns the content of UPTIME, as of the last tick. Any thread may call it."""
    members = {"runs": [[*run] for run in uptime.runs], "ahead": uptime.ahead.to_json(uptime.now_us)}
    return seal(FORMAT, VERSION, members)


def monotonic_us_of(clock: Clock) -> int:
    """Returns the monotonic clock in microseconds."""
    return int(clock.monotonic() * 1e6)
