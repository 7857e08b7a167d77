"""The records of a recovered journal, for the node to take over: by columns, or one at a time.

Records that recovery has checked are read a second time, when the node knows its manifests.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tailrace_server.journal.errors import JournalDamaged
from tailrace_server.journal.format import FILE_HEADER_BYTES, JournalHeader, RecordKind, lsn
from tailrace_server.journal.progress import Progress
from tailrace_server.journal.reader import BadRecord, Record, Window, read_record, read_records, record_of
from tailrace_server.journal.stretch import Stretch, read_stretch

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk


class FileExtent(NamedTuple):
    """A file of the journal, whose records count from its header to ``end``."""

    path: str
    header: JournalHeader
    end: int


class Records:
    """The records of a journal in order. Each iteration reads the files again, and keeps nothing.

    Raises JournalDamaged if a file has changed since recovery read it.
    """

    def __init__(
        self, disk: Disk, extents: tuple[FileExtent, ...], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._disk = disk
        self._clock = clock
        self.extents = extents

    @property
    def begin(self) -> int:
        """The lsn of the oldest file's begin."""
        return lsn(self.extents[0].header.number, 0)

    def parts(self) -> Iterator[Stretch | Record]:
        """Yields the same records by columns; records that are too large for that one at a time."""
        progress = Progress("replaying", sum(extent.end for extent in self.extents), self._clock)
        for extent in self.extents:
            yield from self._parts(extent, progress)

    def _parts(self, extent: FileExtent, progress: Progress) -> Iterator[Stretch | Record]:
        offset = FILE_HEADER_BYTES
        with contextlib.closing(self._disk.open(extent.path)) as file:
            window = Window(file, extent.path)
            while offset < extent.end:
                stretch = read_stretch(window, extent.header, offset, extent.end)
                if stretch is not None:
                    yield stretch
                    progress.add(stretch.end - offset, len(stretch))
                    offset = stretch.end
                    continue
                try:
                    raw = read_record(window, extent.header, offset, extent.end)
                except BadRecord as error:
                    raise JournalDamaged(extent.path, error.offset, str(error)) from None
                yield record_of(raw)
                offset = raw.header.end

    def of_kind(self, kind: RecordKind) -> Iterator[Record]:
        """Yields the records of one kind, in order."""
        for part in self.parts():
            if isinstance(part, Record):
                if part.kind is kind:
                    yield part
            elif part.has(kind):
                yield from map(part.record, np.flatnonzero(part.heads["kind"] == kind).tolist())

    def __iter__(self) -> Iterator[Record]:
        for extent in self.extents:
            yield from self._read(extent)

    def _read(self, extent: FileExtent) -> Iterator[Record]:
        with contextlib.closing(self._disk.open(extent.path)) as file:
            try:
                for raw in read_records(Window(file, extent.path), extent.header, FILE_HEADER_BYTES, extent.end):
                    yield record_of(raw)
            except BadRecord as error:
                raise JournalDamaged(extent.path, error.offset, str(error)) from None
