"""Tells whether a process has a processor to spare, so that it may poll while its peer works."""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path

# Of a process that may poll: one that polls, and one for its other threads, or for its peer.
_PROCESSORS_MIN = 2
_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@functools.cache
def has_spare_processor() -> bool:
    """Returns whether the machine and the quota of this process have several processors.

    With one, polling would take the time of the peer. A quota counts what is polled, too, and then stops the process.
    On which processors the process may run does not count: one of its own is enough.
    """
    return min(os.cpu_count() or 1, quota(_OWN_GROUPS, _GROUPS)) >= _PROCESSORS_MIN


def quota(own: Path, root: Path) -> float:
    """Returns how many processors the control groups of a process allow; infinite without a bound, or without groups.

    Args:
        own: The file that names the groups of a process, a line for each hierarchy: ``number:controllers:path``.
        root: The folder with all hierarchies: version 2 is itself, those of version 1 are below by their controllers.
    """
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:  # no Linux
        return math.inf
    found = math.inf
    for _, controllers, path in groups:
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / controllers
        folder = top / path.lstrip("/")
        # A container may see the path that its host sees, and its own group as the top.
        for each in (folder, *folder.parents):
            if each.is_relative_to(top):
                found = min(found, _quota_of(each))
    return found


def _quota_of(folder: Path) -> float:
    """Returns the processors that one group allows; infinite if it does not tell."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            allowed, period = " ".join((folder / name).read_text() for name in names).split()
        except (OSError, ValueError):
            continue
        return math.inf if allowed in ("max", "-1") else int(allowed) / int(period)
    return math.inf
