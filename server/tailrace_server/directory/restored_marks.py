"""Files that tell the next start what has become of a directory. That they are there is what counts.

    RESTORED   its data are those of another node, or were repaired: every partition begins a new branch, whose term is
               far above (restored_term). Removed when these branches are durable. A member or a replica does not
               start there: it may lack what it has acknowledged, and nobody may count on it
    RESTORING  a restore into it has begun and has not ended: it must not be served
    REPAIRING  likewise a repair; what the file says is the repair's own (offline/repair.py)
    BACKUP     it is a backup: it is restored, never served, since it shares its segments with another directory

A copy of a node goes on with branches that the node has written to since; its consumers can tell the two apart only by
a branch of its own. They also refuse a node whose term is below the last one that they saw, as one that is behind, and
nobody knows how many starts the original has had since, nor how often the same backup was restored before: so the term
is the time, in milliseconds. A start adds one, which takes longer than that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tailrace_server.directory.identity import FILE_NAME, BadDirectory, renew
from tailrace_server.directory.sealed import seal
from tailrace_server.host.disk import write_atomically

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk
    from tailrace_server.host.randomness import Randomness

RESTORED_NAME = "RESTORED"
RESTORING_NAME = "RESTORING"
REPAIRING_NAME = "REPAIRING"
BACKUP_NAME = "BACKUP"

# Where the clock is behind: a start adds one term, and a million of them is more than any node has.
RESTORED_TERMS = 1 << 20

_REFUSED = {
    RESTORING_NAME: "a restore into it has not been finished: remove its contents and restore again",
    REPAIRING_NAME: "a repair of it has not been finished: run `tailrace repair` again",
    BACKUP_NAME: "it is a backup: make a data directory of it with `tailrace restore`",
}


def check_usable(disk: Disk, directory: str, *, but: str = "") -> None:
    """BadDirectory, and what to do, where a mark says that a node must not start on it; ``but`` is let pass."""
    for name, why in _REFUSED.items():
        if name != but and is_marked(disk, directory, name):
            raise BadDirectory(f"{directory} cannot be used: {why}")


def is_marked(disk: Disk, directory: str, name: str) -> bool:
    """The mark is there."""
    return disk.exists(os.path.join(directory, name))


def mark(disk: Disk, directory: str, name: str) -> None:
    """Makes a mark that says nothing but its name, durably."""
    write_atomically(disk, os.path.join(directory, name), seal(f"tailrace {name.lower()}", 1, {}))


def unmark(disk: Disk, directory: str, name: str) -> None:
    """Removes a mark, durably; nothing where there is none."""
    path = os.path.join(directory, name)
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(directory)


def is_restored(disk: Disk, directory: str) -> bool:
    """The next branches of all partitions have to begin with a restored term."""
    return is_marked(disk, directory, RESTORED_NAME)


def restored_term(term: int, now_us: int) -> int:
    """The term of a restored partition's next branch: above those of all that has ever gone on from the same backup.

    ``term`` is the last one that the partition knows, ``now_us`` the wall clock's microseconds since 1970. Where the
    clock is not ahead of the terms, what went on for fewer than RESTORED_TERMS starts is passed still.
    """
    now_ms = now_us // 1000
    return now_ms if now_ms > term else term + RESTORED_TERMS


def mark_restored(disk: Disk, directory: str, randomness: Randomness) -> None:
    """Makes a copied directory a node of its own, durably: new ids, and the mark. May be done again.

    BadDirectory where the directory is of no node, or its NODE is damaged. OSError.
    """
    if not disk.exists(os.path.join(directory, FILE_NAME)):
        raise BadDirectory(f"{directory} holds no node's data: there is nothing that could have been restored")
    mark(disk, directory, RESTORED_NAME)
    renew(disk, directory, randomness)


def unmark_restored(disk: Disk, directory: str) -> None:
    """The new branches are durable."""
    unmark(disk, directory, RESTORED_NAME)
