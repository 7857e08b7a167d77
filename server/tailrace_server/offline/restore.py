"""``tailrace restore``: makes a data directory from a backup, which does not change.

RESTORING   is written first: a node must not start before all files are complete
files       segments are linked if possible, other files are copied
RESTORED    is written, with new ids in NODE: it is another node of the same cluster (directory/restored_marks.py)
RESTORING   is removed
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory.copying import can_link, check_target, copy_file, make_durable
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.directory.watcher import Unwatched, Watcher
from tailrace_server.journal.clean import CLEAN_NAME
from tailrace_server.journal.lock import LOCK_NAME
from tailrace_server.journal.reserve import RESERVE_NAME
from tailrace_server.offline.data_directory import files_below, locked, size_of
from tailrace_server.offline.format_versions import check_versions

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk
    from tailrace_server.host.randomness import Randomness

_LEFT_OUT = (CLEAN_NAME, LOCK_NAME, RESERVE_NAME, marks.BACKUP_NAME)


class Restored(NamedTuple):
    """The number of restored files, how many of them are ``linked``, and their bytes."""

    files: int
    linked: int
    nbytes: int


def restore(
    disk: Disk,
    source: str,
    directory: str,
    randomness: Randomness,
    *,
    copies: bool = False,
    watcher: Watcher | None = None,
) -> Restored:
    """Makes ``directory``, which is empty or missing, a data directory from the backup ``source``.

    ``copies``: segments are copied even if they could be linked. Raises BadDirectory, OSError: then ``directory`` is
    incomplete and a node refuses it. Remove its contents before another try.
    """
    if not marks.is_marked(disk, source, marks.BACKUP_NAME):
        why = f"it has no {marks.BACKUP_NAME}" if disk.exists(source) else "it does not exist"
        raise BadDirectory(f"{source} is no finished backup: {why}")
    check_versions(disk, source)
    check_target(disk, source, directory)
    disk.make_directory(directory)
    marks.mark(disk, directory, marks.RESTORING_NAME)
    watcher = Unwatched() if watcher is None else watcher
    paths = [path for path in files_below(disk, source) if path not in _LEFT_OUT]
    sizes = {path: size_of(disk, os.path.join(source, path)) for path in paths}
    watcher.expect(sum(sizes.values()))
    linked = 0
    for path in paths:
        watcher.begin(path)
        linked += _put(disk, source, directory, path, sizes[path], watcher, copies=copies)
    make_durable(disk, directory)
    with locked(disk, directory):
        marks.mark_restored(disk, directory, randomness)
        marks.unmark(disk, directory, marks.RESTORING_NAME)
    return Restored(len(paths), linked, sum(sizes.values()))


def _put(disk: Disk, source: str, directory: str, path: str, nbytes: int, watcher: Watcher, *, copies: bool) -> bool:
    """Links or copies a file; returns whether it was linked. Only files that are never written again are linked."""
    target = os.path.join(directory, path)
    disk.make_directory(os.path.dirname(target))
    if path.endswith(".seg") and not copies and can_link(disk, os.path.join(source, path), target):
        watcher.read(nbytes)
        return True
    copy_file(disk, os.path.join(source, path), target, watcher)
    return False
