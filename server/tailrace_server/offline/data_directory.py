"""A data directory and its files, for the offline tools."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace_server.directory.identity import FILE_NAME, BadDirectory
from tailrace_server.journal import lock_directory
from tailrace_server.manifest.store import FEEDS_NAME

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk


JOURNAL_NAME = "journal"


def check_data_directory(disk: Disk, directory: str) -> None:
    """Raises BadDirectory if it is no data directory, and OSError if it is missing or cannot be read."""
    if not {FILE_NAME, JOURNAL_NAME, FEEDS_NAME} & set(disk.names(directory)):
        raise BadDirectory(f"{directory} is no data directory: it has neither {FILE_NAME} nor a journal")


@contextlib.contextmanager
def locked(disk: Disk, directory: str) -> Iterator[None]:
    """Locks the directory during the body. Raises BadDirectory, OSError, and DirectoryInUse if a node runs on it."""
    check_data_directory(disk, directory)
    with contextlib.closing(lock_directory(disk, directory)):
        yield


def size_of(disk: Disk, path: str) -> int:
    """Returns a file's size in bytes; 0 if it is missing, or a directory."""
    if not disk.exists(path) or is_directory(disk, path):
        return 0
    with contextlib.closing(disk.open(path)) as file:
        return file.size()


def is_directory(disk: Disk, path: str) -> bool:
    """Returns whether the path is a directory."""
    try:
        disk.names(path)
    except OSError:
        return False
    return True


def files_below(disk: Disk, directory: str, relative: str = "") -> Iterator[str]:
    """Yields the relative path of every file below a directory, sorted."""
    for name in disk.names(os.path.join(directory, relative) if relative else directory):
        path = os.path.join(relative, name)
        if is_directory(disk, os.path.join(directory, path)):
            yield from files_below(disk, directory, path)
        else:
            yield path
