"""Marks in a data directory for the next start: files whose existence counts.

    RESTORED   its data are from another node, or were repaired: every partition begins a new branch with a far higher
               term (restored_term). Removed when these branches are durable. A member or a replica does not start on
               it, because it may lack rows that it has acknowledged
    RESTORING  a restore into it has begun, but not ended: a node does not start on it
    REPAIRING  the same for a repair; the content is the repair's own (offline/repairing_mark.py)
    OF_SET     a backup of a set's member: beside RESTORED, it starts alone only with --restored. Removed with that
    BACKUP     it is a backup, which is restored, never served: it shares its segments with another directory

A copy of a node continues branches to which the node has written since, so its consumers need a new branch to tell the
two apart. Consumers also refuse a node whose term is below the last one that they saw, because it is behind. The number
of starts of the original is unknown, and so is the number of earlier restores. So the new term is the time in
milliseconds: a start adds one to the term, and takes longer than a millisecond.
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

VERSION = 1
BACKUP_VERSION = 1
RESTORED_NAME = "RESTORED"
RESTORING_NAME = "RESTORING"
REPAIRING_NAME = "REPAIRING"
BACKUP_NAME = "BACKUP"
OF_SET_NAME = "OF_SET"

# Added if the clock is behind: a start adds one term, and no node has a million starts.
RESTORED_TERMS = 1 << 20

_REFUSED = {
    RESTORING_NAME: "a restore into it was not finished: remove its contents and restore again",
    REPAIRING_NAME: "a repair of it was not finished: run `tailrace repair` again",
    BACKUP_NAME: "it is a backup: make a data directory from it with `tailrace restore`",
}


def check_usable(disk: Disk, directory: str, *, but: str = "") -> None:
    """Raises BadDirectory, with advice, if a mark forbids a node to start on it; ignores the mark ``but``."""
    for name, why in _REFUSED.items():
        if name != but and is_marked(disk, directory, name):
            raise BadDirectory(f"{directory} cannot be used: {why}")


def is_marked(disk: Disk, directory: str, name: str) -> bool:
    """Returns whether the mark is set."""
    return disk.exists(os.path.join(directory, name))


def mark(disk: Disk, directory: str, name: str) -> None:
    """Sets a mark without further content, durably."""
    write_atomically(disk, os.path.join(directory, name), seal(f"tailrace {name.lower()}", VERSION, {}))


def unmark(disk: Disk, directory: str, name: str) -> None:
    """Removes a mark, durably, if it is set."""
    path = os.path.join(directory, name)
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(directory)


def is_restored(disk: Disk, directory: str) -> bool:
    """Returns whether the next branches of all partitions must begin with a restored term."""
    return is_marked(disk, directory, RESTORED_NAME)


def restored_term(term: int, now_us: int) -> int:
    """Returns the term of a restored partition's next branch, above those of all other restores of the same backup.

    ``term`` is the partition's last term, and ``now_us`` the wall clock in microseconds since 1970. If the clock is
    behind the terms, the result is still above those of fewer than RESTORED_TERMS starts.
    """
    now_ms = now_us // 1000
    return now_ms if now_ms > term else term + RESTORED_TERMS


def mark_restored(disk: Disk, directory: str, randomness: Randomness) -> None:
    """Makes a copied directory another node, durably: new ids, and the mark RESTORED. May be repeated.

    Raises BadDirectory if it is no node's directory, or its NODE is damaged, and OSError.
    """
    if not disk.exists(os.path.join(directory, FILE_NAME)):
        raise BadDirectory(f"{directory} is no node's directory (it has no {FILE_NAME}): restore the data first")
    mark(disk, directory, RESTORED_NAME)
    renew(disk, directory, randomness)


def unmark_restored(disk: Disk, directory: str) -> None:
    """Removes the mark RESTORED, and OF_SET. Call it when the new branches are durable."""
    unmark(disk, directory, RESTORED_NAME)
    unmark(disk, directory, OF_SET_NAME)
