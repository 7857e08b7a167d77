"""The files of a data directory, and who watches how they are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk


class Watcher(Protocol):
    """Is told how far a long reading has come."""

    def expect(self, nbytes: int) -> None:
        """So many bytes more will be read."""

    def begin(self, path: str) -> None:
        """Now this file is read."""

    def read(self, nbytes: int) -> None:
        """So many bytes more were read."""


class Unwatched:
    """A watcher that does nothing."""

    def expect(self, nbytes: int) -> None:
        """Nothing."""

    def begin(self, path: str) -> None:
        """Nothing."""

    def read(self, nbytes: int) -> None:
        """Nothing."""


def size_of(disk: Disk, path: str) -> int:
    """A file's size; 0 where there is none."""
    if not disk.exists(path):
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
