"""Copies and links files from one directory to another."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from tailrace_server.directory.identity import BadDirectory

if TYPE_CHECKING:
    from tailrace_server.directory.watcher import Watcher
    from tailrace_server.host.disk import Disk, File

COPY_BYTES = 1 << 20

# The errors of a file system without links, without links between these directories, or without more for this file.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def check_target(disk: Disk, source: str, target: str) -> None:
    """Raises BadDirectory unless ``target`` is empty or missing, and outside of ``source``."""
    if disk.exists(target) and disk.names(target):
        raise BadDirectory(f"{target} is not empty: take a new directory, or remove the files of an earlier try")
    if f"{disk.real_path(target)}/".startswith(f"{disk.real_path(source)}/"):
        raise BadDirectory(f"{target} lies in {source}: take a directory outside of it")


class Shrunk(Exception):
    """A file has fewer bytes than before: another program has changed it."""


def can_link(disk: Disk, source: str, target: str) -> bool:
    """Links a file to a second name; returns False if the file system cannot. Raises FileNotFoundError."""
    try:
        disk.link(source, target)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def copy_file(disk: Disk, source: str, target: str, watcher: Watcher) -> None:
    """Copies a whole file. Its bytes are durable afterwards, its name is not."""
    with contextlib.closing(disk.open(source)) as file:
        copy_bytes(disk, file, file.size(), target, watcher)


def copy_bytes(disk: Disk, source: File, nbytes: int, target: str, watcher: Watcher) -> None:
    """Copies the first ``nbytes`` of a file, as ``copy_file``. Raises Shrunk if the file has fewer."""
    with contextlib.closing(disk.create(target)) as file:
        offset = 0
        while offset < nbytes:
            data = source.read_at(offset, min(COPY_BYTES, nbytes - offset))
            if not data:
                raise Shrunk(f"a file of {nbytes} bytes has {offset} now")
            file.write_at(offset, (data,), len(data))
            offset += len(data)
            watcher.read(len(data))
        file.sync()


def make_durable(disk: Disk, directory: str) -> None:
    """Makes every name below a directory durable."""
    for name in disk.names(directory):
        path = os.path.join(directory, name)
        with contextlib.suppress(NotADirectoryError):
            make_durable(disk, path)
    disk.sync_directory(directory)


def remove_below(disk: Disk, directory: str) -> None:
    """Removes a directory with all its files, if it exists."""
    if not disk.exists(directory):
        return
    for name in disk.names(directory):
        path = os.path.join(directory, name)
        try:
            remove_below(disk, path)
        except NotADirectoryError:
            disk.remove(path)
    disk.remove_directory(directory)
