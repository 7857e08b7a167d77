"""A segment's file in a copy: its errors name the file, and say what to do."""

from __future__ import annotations

import errno
import os
import stat
from io import FileIO

from tailrace.errors import BadCopy, IncompleteCopy
from tailrace.segment.errors import UnknownSegmentVersion

# What the open of a socket, of a pipe, of a link to itself and of a directory may end with.
_IRREGULAR = (errno.ENXIO, errno.ELOOP, errno.EISDIR)


def open_regular(path: str, flags: int = os.O_RDONLY) -> int:
    """Opens a file, and returns its descriptor. A pipe in its place would wait for its other end, for ever.

    Raises BadCopy if it is no regular file; OSError.
    """
    fd = -1
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in _IRREGULAR:
            raise
    if fd < 0 or not stat.S_ISREG(os.fstat(fd).st_mode):
        if fd >= 0:
            os.close(fd)
        raise BadCopy(f"{path} is no regular file: move it away, or fetch into another directory", path=path)
    return fd


class CopyFile:
    """An open file of a copy, with its size in bytes; for one thread at a time.

    ``command`` is the command that fetches the copy again.
    """

    def __init__(self, path: str, command: str) -> None:
        """Opens the file. Raises IncompleteCopy if it is missing, BadCopy if it is no regular file, OSError."""
        self.path = path
        self._command = command
        try:
            self._file = FileIO(open_regular(path))
        except FileNotFoundError:
            raise IncompleteCopy(
                f"{path} is missing: if a fetch has replaced it, open the copy again; otherwise run {command} again",
                path=path,
            ) from None
        self.nbytes = os.fstat(self._file.fileno()).st_size

    def read(self, offset: int, nbytes: int) -> bytes:
        """Returns ``nbytes`` bytes from ``offset`` on. BadCopy if they are not there, or the disk can't read them."""
        try:
            self._file.seek(offset)
            data = self._file.read(nbytes)
            while len(data) < nbytes and (more := self._file.read(nbytes - len(data))):
                data += more
        except OSError as error:
            raise self.damaged(offset, f"the disk can't read it: {error.strerror}") from error
        if len(data) != nbytes:
            raise self.damaged(offset, f"{nbytes} bytes were expected here, the file ends after {len(data)}")
        return data

    def damaged(self, offset: int, why: object) -> BadCopy:
        """Returns the error that gives ``why`` for the part that begins at ``offset``."""
        if isinstance(why, UnknownSegmentVersion):
            return BadCopy(f"{self.path}: {why}; read it with the Tailrace that fetched it", path=self.path)
        return BadCopy(
            f"{self.path} is damaged at offset {offset}: {why}; remove it, and run {self._command} again",
            path=self.path,
        )

    def close(self) -> None:
        """Closes the file. May be called again."""
        self._file.close()
