"""The directory of the stages: their files are created, opened again, sealed, read and removed here.

It knows no stage: `stages.py` does. Methods that wait for the disk say that they are for a thread.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Sequence

from tailrace.block import Block
from tailrace.errors import TailraceError, UnknownStage
from tailrace_server.host.disk import Disk, File, raise_if_no_space
from tailrace_server.publishing import stage_file
from tailrace_server.publishing.open_stage import LeftStage, OpenStage, scan
from tailrace_server.publishing.stage_copy import StageCopy
from tailrace_server.publishing.stage_file import BadStage, StagedBlock
from tailrace_server.publishing.stage_reader import SealedFile, open_sealed, read_blocks, read_index, read_part

log = logging.getLogger("tailrace.server")

DIRECTORY = "staging"
OPEN_SUFFIX = ".open"
SEALED_SUFFIX = ".stage"
CUT_SUFFIX = ".cut"  # a scratch file, which a start removes


class StageDirectory:
    """The files of the stages of one node. All methods but those that create may be called off the node's loop."""

    def __init__(self, disk: Disk, data: str, monotonic: Callable[[], float], wall_us: Callable[[], int]) -> None:
        self.path = os.path.join(data, DIRECTORY)
        self._disk = disk
        self._monotonic = monotonic
        self._wall_us = wall_us
        self._is_made = False
        self._scratch_numbers = itertools.count()

    def open_path(self, id: bytes) -> str:
        """Returns the path of an unsealed stage."""
        return os.path.join(self.path, id.hex() + OPEN_SUFFIX)

    def sealed_path(self, id: bytes) -> str:
        """Returns the path of a sealed stage."""
        return os.path.join(self.path, id.hex() + SEALED_SUFFIX)

    def _scratch_path(self) -> str:
        return os.path.join(self.path, next(self._scratch_numbers).to_bytes(16, "big").hex() + CUT_SUFFIX)

    def find(self) -> tuple[dict[bytes, LeftStage], dict[bytes, SealedFile]]:
        """Returns the unsealed and the sealed stages of earlier runs, at a start. OSError.

        Removes scratch files, and sealed stages that are damaged.
        """
        left: dict[bytes, LeftStage] = {}
        sealed: dict[bytes, SealedFile] = {}
        if not self._disk.exists(self.path):
            return left, sealed
        self._is_made = True
        for name in self._disk.names(self.path):
            path = os.path.join(self.path, name)
            if name.endswith(CUT_SUFFIX):
                self._disk.remove(path)
                continue
            id = _id_of(name)
            if id is None:
                continue
            if name.endswith(OPEN_SUFFIX):
                left[id] = self._look_left(path)
                continue
            try:
                sealed[id] = open_sealed(self._disk, path, id, self._monotonic())
            except (BadStage, OSError) as error:
                log.error("stage %s is damaged (%s): its writer has to stage the batch again", path, error)
                self._disk.remove(path)
        return left, sealed

    def _look_left(self, path: str) -> LeftStage:
        nbytes = 0
        with contextlib.suppress(OSError), contextlib.closing(self._disk.open(path)) as file:
            nbytes = file.size()
        return LeftStage(nbytes, self._disk.changed_ns(path) // 1_000)

    # Creating

    def create(self, feed_id: bytes, id: bytes) -> OpenStage:
        """Makes the file of a new stage. Raises NoSpace, TailraceError."""
        path = self.open_path(id)
        try:
            self._make()
            file = self._disk.create(path)
            header = stage_file.encode_header(feed_id, id)
            try:
                file.write_at(0, (header,), len(header))
            except OSError:
                file.close()
                self.remove([path])
                raise
        except OSError as error:
            raise_if_no_space(error, f"for stages in {self.path}")
            raise TailraceError(f"a stage cannot be written: {error.strerror}") from error
        return OpenStage(feed_id, id, file, path, self._monotonic())

    def begin_copy(self, feed_id: bytes, id: bytes, nbytes: int) -> StageCopy:
        """Begins the copy of another node's sealed stage. TailraceError."""
        try:
            self._make()
        except OSError as error:
            raise TailraceError(f"a stage cannot be written: {error.strerror}") from error
        return StageCopy(self._disk, self._scratch_path(), self.sealed_path(id), feed_id=feed_id, id=id, nbytes=nbytes)

    def _make(self) -> None:
        if not self._is_made:
            self._disk.make_directory(self.path)
            self._is_made = True

    def create_scratch(self) -> tuple[File, str]:
        """For a thread: makes an empty file, which the next start removes; returns it and its path.

        Raises NoSpace, UnknownStage.
        """
        path = self._scratch_path()
        try:
            return self._disk.create(path), path
        except OSError as error:
            raise_if_no_space(error, f"for the parts of a publish in {self.path}")
            raise UnknownStage(f"the parts of a publish cannot be written: {error.strerror}") from error

    # Sealing

    def reopen(self, id: bytes) -> OpenStage | None:
        """For a thread: opens an unsealed stage of an earlier run, with the good blocks at its beginning.

        Returns None if the file cannot be read, or is not this stage; in the second case it is removed.
        """
        path = self.open_path(id)
        try:
            file = self._disk.open(path, writable=True)
        except OSError:
            return None
        try:
            feed_id, own_id = stage_file.decode_header(file.read_at(0, stage_file.HEADER_BYTES))
            if own_id == id:
                stage = OpenStage(feed_id, id, file, path, self._monotonic())
                scan(stage)
                return stage
        except OSError:
            file.close()
            return None
        except BadStage:
            pass
        file.close()
        self.remove([path])
        return None

    def seal(self, stage: OpenStage) -> SealedFile:
        """For a thread: writes the index and the footer, syncs and renames the file; then call `Stages.sealed`.

        Raises NoSpace if the footer does not fit. The stage is as it was: call `Stages.not_sealed`, and the seal may be
        tried again. Raises UnknownStage if the disk failed otherwise: call `Stages.lost`. The files are removed then,
        because a second fsync would succeed without having written anything.
        """
        sealed_us = self._wall_us()
        checksum = stage.sum.intdigest()
        end = stage_file.encode_end(stage.entries, stage.end, checksum, sealed_us)
        try:
            stage.file.write_at(stage.end, (end,), len(end))
            stage.file.truncate(stage.end + len(end))  # a write that failed may have left bytes behind it
        except OSError as error:
            raise_if_no_space(error, f"for stages in {self.path}")
            raise self._discard(stage, error) from error
        try:
            stage.file.sync()
            self._disk.rename(stage.path, self.sealed_path(stage.id))
            self._disk.sync_directory(self.path)
        except OSError as error:
            raise self._discard(stage, error) from error
        stage.file.close()
        return SealedFile(stage.feed_id, stage.end + len(end), checksum, sealed_us, stage.used_at)

    def _discard(self, stage: OpenStage, error: OSError) -> UnknownStage:
        """Removes the files of a stage that could not be sealed; returns the error for its writer."""
        stage.file.close()
        self.remove([stage.path, self.sealed_path(stage.id)])
        return UnknownStage(f"stage {stage.id.hex()} could not be sealed ({error.strerror}): stage its rows anew")

    # Reading

    def read_part(self, id: bytes, offset: int, nbytes: int) -> tuple[int, bytes]:
        """For a thread: the size of a sealed stage's file, and a part of it. UnknownStage if it is missing."""
        return read_part(self._disk, self.sealed_path(id), id, offset, nbytes)

    def read_index(self, id: bytes) -> list[StagedBlock]:
        """For a thread: the blocks of a sealed stage. UnknownStage if it is missing or damaged."""
        return read_index(self._disk, self.sealed_path(id), id)

    def read_blocks(self, id: bytes, entries: Sequence[StagedBlock]) -> list[Block]:
        """For a thread: these blocks of a sealed stage. UnknownStage if it is missing or damaged."""
        return read_blocks(self._disk, self.sealed_path(id), id, entries)

    def remove(self, paths: Sequence[str]) -> None:
        """For a thread: removes files. The next start finds a file that cannot be removed, and expires it there."""
        for path in paths:
            with contextlib.suppress(OSError):
                self._disk.remove(path)


def _id_of(name: str) -> bytes | None:
    stem, dot, suffix = name.partition(".")
    if dot + suffix not in (OPEN_SUFFIX, SEALED_SUFFIX) or len(stem) != 32:
        return None
    try:
        return bytes.fromhex(stem)
    except ValueError:
        return None
