"""A segment's file: reads that fail name the file and the place, and reads on the loop do not wait for the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tailrace.errors import Overloaded, TailraceError
from tailrace_server.host.disk import is_out_of_descriptors
from tailrace_server.host.open_files import PooledFile
from tailrace_server.segment.errors import SegmentDamaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.host.open_files import LentFile, Opener

T = TypeVar("T", bytes, bytes | memoryview | None)


class SegmentFile:
    """An open file of ``nbytes`` bytes (as it was when it was opened) at ``path``. Reads may come from any thread."""

    def __init__(self, files: Opener, path: str) -> None:
        """Opens the file. OSError if that fails, which says nothing about its bytes."""
        self.path = path
        self._file = files.open(path)
        self.nbytes = self._file.size()

    def read(self, offset: int, nbytes: int) -> bytes:
        """Returns ``nbytes`` bytes from ``offset`` on.

        Raises:
            SegmentDamaged: they are not there, or the disk can't read them.
            Overloaded: the file has to be opened again, and no descriptor is free; a later call may succeed.
        """
        return self._checked(self._file.read_at, offset, nbytes)

    def read_cached(self, offset: int, nbytes: int) -> bytes | memoryview | None:
        """Reads as ``read``, without waiting for the disk. Returns None if not all bytes are in memory."""
        return self._checked(self._file.read_cached, offset, nbytes)

    def load(self, offset: int, nbytes: int) -> None:
        """Brings a part of the file into memory, for ``lend_cached``. SegmentDamaged or Overloaded, as ``read``."""
        if isinstance(self._file, PooledFile):
            try:
                self._file.load(offset, nbytes)
            except OSError as error:
                raise self._failure(error, offset) from error

    def lend_cached(self, offset: int, nbytes: int) -> LentFile | None:
        """Lends the descriptor for a part of the file. None if sending the part would wait for the disk.

        Also None if the file has no descriptor of the system.
        """
        return self._file.lend_cached(offset, nbytes) if isinstance(self._file, PooledFile) else None

    def _checked(self, read: Callable[[int, int], T], offset: int, nbytes: int) -> T:
        try:
            data = read(offset, nbytes)
        except OSError as error:
            raise self._failure(error, offset) from error
        if data is not None and len(data) != nbytes:
            raise self.damaged(offset, f"{nbytes} bytes were expected here, the file ends after {len(data)}")
        return data

    def _failure(self, error: OSError, offset: int) -> TailraceError:
        if is_out_of_descriptors(error):
            return Overloaded(
                f"no file descriptor is free to read {self.path}: close connections, or raise the limit of open "
                "files (ulimit -n) and restart the node"
            )
        # EIO: the disk itself says that it lost something
        return self.damaged(offset, f"the disk can't read it: {error.strerror}")

    def damaged(self, offset: int, why: object) -> SegmentDamaged:
        """Returns the error that gives ``why`` for the part that begins at ``offset``."""
        return SegmentDamaged(self.path, offset, str(why))

    def close(self) -> None:
        """Closes the file. May be called again."""
        self._file.close()


# How a look-up reads: `SegmentFile.read`, which waits for the disk, or a `Reads.read`, which does not.
Read: TypeAlias = "Callable[[SegmentFile, int, int], bytes | memoryview]"


class NotCached(Exception):
    """A look-up needs bytes that are not in memory. Call ``load``, in a thread, and look up again."""

    def __init__(self, reads: Reads, file: SegmentFile, offset: int, nbytes: int) -> None:
        super().__init__(f"{nbytes} bytes at offset {offset} of {file.path} are not in memory")
        self.segment: object = None  # the `Segment` whose file it is, to be pinned while it is read
        self._reads = reads
        self._place = file, offset, nbytes

    def load(self) -> None:
        """Reads the bytes, for as long as the disk takes, and keeps them for the next try. SegmentDamaged."""
        file, offset, nbytes = self._place
        self._reads.loaded[self._place] = file.read(offset, nbytes)

    @property
    def nbytes(self) -> int:
        """The number of bytes that ``load`` reads."""
        return self._place[2]

    def forget(self) -> None:
        """Drops the bytes that ``load`` has read: the look-up waits for something else first."""
        self._reads.loaded.pop(self._place, None)


class Reads:
    """Reads for one look-up without waiting for the disk: raises NotCached if bytes are not in memory.

    Loaded bytes are kept until ``forget``. So each try gets further than the one before, even if the machine is short
    of memory.
    """

    def __init__(self) -> None:
        self.loaded: dict[tuple[SegmentFile, int, int], bytes] = {}

    def read(self, file: SegmentFile, offset: int, nbytes: int) -> bytes | memoryview:
        """Returns ``nbytes`` bytes of ``file`` from ``offset`` on. NotCached, SegmentDamaged."""
        data: bytes | memoryview | None = self.loaded.get((file, offset, nbytes)) if self.loaded else None
        if data is None:
            data = file.read_cached(offset, nbytes)
        if data is None:
            raise NotCached(self, file, offset, nbytes)
        return data

    def forget(self) -> None:
        """Drops all loaded bytes: the look-up has ended."""
        self.loaded.clear()
