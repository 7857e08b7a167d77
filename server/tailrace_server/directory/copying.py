"""Files copied and linked from one directory to another."""

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

# What a file system says that has no links, or not from there to here, or no more of this file.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def check_target(disk: Disk, source: str, target: str) -> None:
    """BadDirectory where ``target`` is not an empty directory, or none yet, that lies outside of ``source``."""
    if disk.exists(target) and disk.names(target):
        raise BadDirectory(f"{target} is not empty: take a new directory, or remove what an earlier try has left there")
    if f"{disk.real_path(target)}/".startswith(f"{disk.real_path(source)}/"):
        raise BadDirectory(f"{target} lies in {source}: take a directory outside of it")


class Shrunk(Exception):
    """A file has fewer bytes than it had: somebody has changed it."""


def can_link(disk: Disk, source: str, target: str) -> bool:
    """Gives a file a second name; False where the file system can't. FileNotFoundError where there is no file."""
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
    """Copies a whole file, durably but for its name."""
    with contextlib.closing(disk.open(source)) as file:
        copy_bytes(disk, file, file.size(), target, watcher)


def copy_bytes(disk: Disk, source: File, nbytes: int, target: str, watcher: Watcher) -> None:
    """Copies the first ``nbytes`` of a file, durably but for its name. Shrunk where there are fewer."""
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
    """Removes a directory and all that is in it; nothing where there is none."""
    if not disk.exists(directory):
        return
    for name in disk.names(directory):
        path = os.path.join(directory, name)
        try:
            remove_below(disk, path)
        except NotADirectoryError:
            disk.remove(path)
    disk.remove_directory(directory)
