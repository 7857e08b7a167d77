"""The copy of a sealed stage while it comes from another node: a scratch file, which becomes a sealed stage at its end.

All methods are for a thread.
"""

from __future__ import annotations

import contextlib
import os

from tailrace.errors import TailraceError, UnknownStage
from tailrace_server.host.disk import Disk, File, raise_if_no_space
from tailrace_server.publishing.stage_file import BadStage
from tailrace_server.publishing.stage_reader import SealedFile, open_sealed, require_whole


class StageCopy:
    """The copy of stage ``id`` of a feed, with ``nbytes`` bytes. Bytes are written in their order."""

    def __init__(self, disk: Disk, scratch: str, path: str, *, feed_id: bytes, id: bytes, nbytes: int) -> None:
        self.feed_id = feed_id
        self.id = id
        self.nbytes = nbytes
        self.written_bytes = 0
        self._disk = disk
        self._scratch = scratch
        self._path = path
        self._file: File | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are written."""
        return self.written_bytes >= self.nbytes

    def write(self, data: bytes | memoryview) -> None:
        """Writes the next bytes. Raises NoSpace, TailraceError."""
        try:
            if self._file is None:
                self._file = self._disk.create(self._scratch)
            self._file.write_at(self.written_bytes, (data,), len(data))
        except OSError as error:
            raise_if_no_space(error, "for the copy of a stage")
            raise TailraceError(f"the copy of a stage cannot be written: {error.strerror}") from error
        self.written_bytes += len(data)

    def seal(self, now: float) -> SealedFile:
        """Checks the file and each block, and makes it a sealed stage, durably; ``now`` is monotonic seconds.

        Raises UnknownStage if it is damaged or of another stage, and NoSpace or TailraceError if the disk fails.
        """
        assert self._file is not None, "a stage has a header"
        try:
            self._file.sync()
            sealed = open_sealed(self._disk, self._scratch, self.id, now)
            if sealed.feed_id != self.feed_id:
                raise BadStage(f"it is of feed {sealed.feed_id.hex()}")
            require_whole(self._disk, self._scratch)
            self._disk.rename(self._scratch, self._path)
            self._disk.sync_directory(os.path.dirname(self._path))
        except BadStage as error:
            raise UnknownStage(f"the copy of stage {self.id.hex()} is damaged: {error}") from error
        except OSError as error:
            raise_if_no_space(error, "for the copy of a stage")
            raise TailraceError(f"the copy of a stage cannot be made durable: {error.strerror}") from error
        return sealed

    def close(self) -> None:
        """Closes the file, and removes it unless ``seal`` has made it a stage."""
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(OSError):
                self._disk.remove(self._scratch)
