"""A data directory and its files, and who watches how they are read."""

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
    """BadDirectory where the directory is none of a node's; OSError where it can't be read, or is not there."""
    if not {FILE_NAME, JOURNAL_NAME, FEEDS_NAME} & set(disk.names(directory)):
        raise BadDirectory(f"{directory} is no data directory: it has neither {FILE_NAME} nor a journal")


@contextlib.contextmanager
def locked(disk: Disk, directory: str) -> Iterator[None]:
    """The directory is nobody else's meanwhile. BadDirectory, OSError, DirectoryInUse where a node has it."""
    check_data_directory(disk, directory)
    with contextlib.closing(lock_directory(disk, directory)):
        yield


def size_of(disk: Disk, path: str) -> int:
    """A file's size; 0 where there is none, or a directory."""
    if not disk.exists(path) or is_directory(disk, path):
        return 0
    with contextlib.closing(disk.open(path)) as file:
        return file.size()


def is_directory(disk: Disk, path: str) -> bool:
    """Whether there is a directory of this name."""
    try:
        disk.names(path)
    except OSError:
        return False
    return True


def files_below(disk: Disk, directory: str, relative: str = "") -> Iterator[str]:
    """Every file below a directory, by its path below it, sorted."""
    for name in disk.names(os.path.join(directory, relative) if relative else directory):
        path = os.path.join(relative, name)
        if is_directory(disk, os.path.join(directory, path)):
            yield from files_below(disk, directory, path)
        else:
            yield path
