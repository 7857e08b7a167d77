"""Opens a file of rows, or the standard input, and tells how far it was read."""

from __future__ import annotations

import gzip
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, cast

from tailrace.cli.errors import WrongUsage
from tailrace.cli.rowfiles.formats import STDIO, is_gzip
from tailrace.cli.rowfiles.records import BadRecord

# The longest line: a value of 16 MiB, in which JSON writes each byte as six characters, and its key.
LINE_BYTES_MAX = 128 * 1024 * 1024
_MARK = b"\xef\xbb\xbf"  # some editors begin a file of UTF-8 with it


class FileState(NamedTuple):
    """What tells whether a file is still the same: its path, size in bytes, and time of change in ns."""

    path: str
    nbytes: int
    changed_ns: int


class Source:
    """An open file, or the standard input. Use it as a context manager.

    Attributes:
        name: The name for messages.
        state: The file when it was opened; None for what is no regular file: it cannot be read twice.
        read_units: How much was read: bytes of the file, or rows.
        total_units: How much there is; None if that is not known.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.name = "the standard input" if path == STDIO else path
        self.state: FileState | None = None
        self.read_units = 0
        self.total_units: int | None = None

    def __enter__(self) -> Source:
        """Opens the file. Raises WrongUsage if that is not possible."""
        if self._path == STDIO:
            # A reader of its own: a thread that waits in it at exit must not hold the lock of ``sys.stdin``.
            self._raw: BinaryIO = open(sys.stdin.fileno(), "rb", closefd=False)
        else:
            try:
                self._raw = Path(self._path).open("rb")
            except OSError as error:
                raise WrongUsage(f"{self._path}: {error.strerror or error}") from None
        self.state = self._look()
        if self.state is not None:
            self.total_units = self.state.nbytes
        self.file = cast("BinaryIO", gzip.GzipFile(fileobj=self._raw)) if is_gzip(self._path) else self._raw
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._path != STDIO:  # a thread may still wait for the standard input
            self._raw.close()

    def _look(self) -> FileState | None:
        found = os.fstat(self._raw.fileno())
        if self._path == STDIO or not stat.S_ISREG(found.st_mode):
            return None
        return FileState(os.path.realpath(self._path), found.st_size, found.st_mtime_ns)

    def has_changed(self) -> bool:
        """Tells whether the file was written since it was opened."""
        return self._look() != self.state

    def lines(self) -> Iterator[bytes]:
        """Yields the lines, without a mark of UTF-8 before the first one. Raises BadRecord, CommandFailed."""
        number = 0
        while True:
            number += 1
            line = self._line(number)
            if not line:
                return
            if number == 1:
                line = line.removeprefix(_MARK)
            if number % 1_000 == 1:
                self._count()
            yield line

    def _line(self, number: int) -> bytes:
        try:
            line = self.file.readline(LINE_BYTES_MAX + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise BadRecord(f"line {number:,}", f"this cannot be read: {error}") from None
        if len(line) > LINE_BYTES_MAX:
            raise BadRecord(f"line {number}", f"longer than {LINE_BYTES_MAX:,} bytes")
        return line

    def _count(self) -> None:
        if self.total_units is not None:
            self.read_units = self._raw.tell()

    def count_rows(self, read: int, total: int) -> None:
        """Notes that ``read`` of ``total`` rows were read."""
        self.read_units, self.total_units = read, total
