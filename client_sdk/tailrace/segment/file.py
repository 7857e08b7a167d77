"""The file of a segment, as the decoder needs it. The server and a reader of copies each have their own."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeAlias


class ReadableFile(Protocol):
    """An open file of ``nbytes`` bytes at ``path``."""

    path: str
    nbytes: int

    def read(self, offset: int, nbytes: int, /) -> bytes:
        """Returns ``nbytes`` bytes from ``offset`` on. Raises the error of ``damaged`` if they are not there."""
        ...

    def damaged(self, offset: int, why: object, /) -> Exception:
        """Returns the error that gives ``why`` for the part that begins at ``offset``."""
        ...

    def close(self) -> None:
        """Closes the file. May be called again."""
        ...


class Kept(Protocol):
    """Keeps verified parts of files, by path and offset, and other parts, for the next look-up."""

    def get(self, place: Hashable, /) -> Any:
        """Returns the part; None if it is not kept."""
        ...

    def put(self, place: Hashable, part: Any, nbytes: int, /) -> None:
        """Keeps a part that holds so many bytes of memory."""
        ...


# How a look-up reads: (file, offset, bytes). The server has one that does not wait for the disk.
Read: TypeAlias = Callable[[Any, int, int], bytes | memoryview]


def read_from(file: ReadableFile, offset: int, nbytes: int) -> bytes:
    """Returns ``nbytes`` bytes of ``file`` from ``offset`` on, and waits for the disk."""
    return file.read(offset, nbytes)
