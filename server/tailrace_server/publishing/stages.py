"""The stages of a node: files with blocks that nobody sees until they are published.

    STAGE_BLOCK ──> <id>.open ... STAGE_SEAL ──> footer, fsync ──> <id>.stage, directory fsynced ──> read by a PUBLISH

A stage is a file of its own and no record of the journal, which it would keep from being trimmed for as long as it
waits. What was not sealed when the node stopped is opened again when its writer goes on: it tells how many blocks were
acknowledged, and where a crash has lost one of these the stage is none any more.

What nobody publishes goes with its age, which counts only time that a node was up. Methods that wait for the disk say
so: they are for a thread.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import xxhash

from tailrace.block import HEADER_BYTES, Block, BlockHeader
from tailrace.errors import BadBlock, Overloaded, TailraceError, UnknownStage
from tailrace.wire.stage_messages import StageSeal
from tailrace_server.host.disk import Disk, File, raise_if_no_space
from tailrace_server.publishing import stage_file
from tailrace_server.publishing.crowding import AGE_S_MIN, Bounds, Held, that_give_way
from tailrace_server.publishing.kept_blocks import KeptBlocks
from tailrace_server.publishing.stage_file import BadStage, StagedBlock
from tailrace_server.state.ahead import is_ahead

log = logging.getLogger("tailrace.server")

DIRECTORY = "staging"
OPEN_SUFFIX = ".open"
SEALED_SUFFIX = ".stage"
CUT_SUFFIX = ".cut"  # a scratch file, of nobody after a restart
# Each has a file open; a task of Spark has one at a time.
OPEN_MAX = 256
# One that is not sealed and gets no block for so long has lost its writer.
IDLE_S_MAX = 3_600.0
# Of a stage that is opened again, in one read.
SCAN_BYTES = 1 << 20


class OpenStage:
    """A stage that is being written."""

    def __init__(self, feed_id: bytes, id: bytes, file: File, path: str, used_at: float) -> None:
        self.feed_id = feed_id
        self.id = id
        self.file = file
        self.path = path
        self.used_at = used_at
        self.entries: list[StagedBlock] = []
        self.end = stage_file.HEADER_BYTES
        self.sum = xxhash.xxh3_64()
        self.is_sealing = False

    def note(self, block: Block) -> None:
        """``block`` has been written behind the others."""
        self.entries.append(StagedBlock(block.header.partition, block.rows, self.end, block.nbytes))
        self.end += block.nbytes
        self.sum.update(block.head)


class LeftStage:
    """A stage that an earlier run has left unsealed. ``changed_us``: when it was last written, by the wall clock."""

    __slots__ = ("changed_us", "is_opening", "nbytes")

    def __init__(self, nbytes: int, changed_us: int) -> None:
        self.nbytes = nbytes
        self.changed_us = changed_us
        self.is_opening = False  # its writer is there, and it is being opened again


class SealedStage(NamedTuple):
    """A stage that can be published.

    ``sealed_us`` is when it was sealed, by the wall clock, or when that was seen to be ahead of the clock; ``heard_at``
    when its last block came, or this node began to run, in seconds of the monotonic one.
    """

    feed_id: bytes
    nbytes: int
    checksum: int
    sealed_us: int
    heard_at: float


class StageStatistics(NamedTuple):
    """For status: how many stages are being written, how many are sealed, and the bytes of all."""

    open: int
    sealed: int
    bytes: int


class Stages:
    """One a node. Only its methods for a thread may be called elsewhere than on the node's loop."""

    def __init__(
        self,
        disk: Disk,
        data: str,
        *,
        stages_max: int,
        bytes_max: int,
        kept_bytes_max: int,
        monotonic: Callable[[], float],
        wall_us: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._directory = os.path.join(data, DIRECTORY)
        self._stages_max = stages_max
        self._bytes_max = bytes_max
        self.kept = KeptBlocks(kept_bytes_max)
        self._monotonic = monotonic
        self._wall_us = wall_us
        self._open: dict[bytes, OpenStage] = {}
        self._sealed: dict[bytes, SealedStage] = {}
        self._left: dict[bytes, LeftStage] = {}
        self._bytes = 0
        self._is_made = False
        self._scratch_numbers = itertools.count()
        self._is_crowded = False  # a stage was refused for lack of room since the last look for old ones
        self._began_at = monotonic()

    def statistics(self) -> StageStatistics:
        """For status."""
        return StageStatistics(len(self._open), len(self._sealed), self._bytes)

    def load(self) -> None:
        """Finds what an earlier run has left, at the start. OSError. A sealed stage that is damaged is none."""
        if not self._disk.exists(self._directory):
            return
        self._is_made = True
        for name in self._disk.names(self._directory):
            path = os.path.join(self._directory, name)
            if name.endswith(CUT_SUFFIX):
                self._disk.remove(path)
                continue
            id = _id_of(name)
            if id is None:
                continue
            if name.endswith(OPEN_SUFFIX):
                self._left[id] = self._look_left(path)
                self._bytes += self._left[id].nbytes
                continue
            try:
                sealed = self._look(path, id)
            except (BadStage, OSError) as error:
                log.error("stage %s is damaged (%s): the batch that it is of will be staged anew", path, error)
                self._disk.remove(path)
            else:
                self._sealed[id] = sealed
                self._bytes += sealed.nbytes

    def _look_left(self, path: str) -> LeftStage:
        nbytes = 0
        with contextlib.suppress(OSError), contextlib.closing(self._disk.open(path)) as file:
            nbytes = file.size()
        return LeftStage(nbytes, self._disk.changed_ns(path) // 1_000)

    def _look(self, path: str, id: bytes) -> SealedStage:
        with contextlib.closing(self._disk.open(path)) as file:
            size = file.size()
            feed_id, own_id = stage_file.decode_header(file.read_at(0, stage_file.HEADER_BYTES))
            footer = stage_file.decode_footer(file.read_at(max(size - stage_file.FOOTER_BYTES, 0), size))
        if own_id != id:
            raise BadStage(f"it is stage {own_id.hex()}")
        return SealedStage(feed_id, size, footer.checksum, footer.sealed_us, self._monotonic())

    # Writing

    def take(self, feed_id: bytes, id: bytes, number: int, acknowledged: int, block: Block) -> int:
        """Adds a block, which has been checked; how many the stage has now. One that it has changes nothing.

        Raises UnknownStage where acknowledged blocks are not there any more, or the stage is sealed; Overloaded and
        NoSpace where it is to be tried again.
        """
        stage = self._open.get(id)
        if stage is None:
            if id in self._sealed:
                raise UnknownStage(f"stage {id.hex()} is sealed, and takes no more")
            stage = self._begin(feed_id, id, acknowledged, block.nbytes)
        held = len(stage.entries)
        if held < acknowledged or stage.feed_id != feed_id or stage.is_sealing:
            raise UnknownStage(f"stage {id.hex()} has {held} blocks here, and {acknowledged} were acknowledged")
        if number < held:
            return held
        if number > held:
            raise Overloaded(f"block {number} of stage {id.hex()} has to wait for block {held}")
        self._check_room(block.nbytes)
        try:
            stage.file.write_at(stage.end, (block.head, block.body), block.nbytes)
        except OSError as error:
            raise_if_no_space(error, f"for stages in {self._directory}")
            raise TailraceError(f"a stage cannot be written: {error.strerror}") from error
        stage.note(block)
        stage.used_at = self._monotonic()
        self.kept.add(id, stage.entries[-1], block, stage.used_at)
        self._bytes += block.nbytes
        return held + 1

    def _begin(self, feed_id: bytes, id: bytes, acknowledged: int, nbytes: int) -> OpenStage:
        if id in self._left:
            raise Overloaded(f"stage {id.hex()} is being opened again")
        if acknowledged:
            raise UnknownStage(f"stage {id.hex()} is not here; {acknowledged} of its blocks were acknowledged")
        unsealed = len(self._open) + len(self._left)
        if unsealed + len(self._sealed) >= self._stages_max or len(self._open) >= OPEN_MAX:
            raise self._crowded(
                f"this node holds {unsealed} stages that are being written and {len(self._sealed)} that nobody "
                f"has published; at most {OPEN_MAX} and together {self._stages_max}"
            )
        self._check_room(nbytes)
        path = self._path(id, OPEN_SUFFIX)
        try:
            if not self._is_made:
                self._disk.make_directory(self._directory)
                self._is_made = True
            file = self._disk.create(path)
            header = stage_file.encode_header(feed_id, id)
            try:
                file.write_at(0, (header,), len(header))
            except OSError:
                file.close()
                self.remove([path])
                raise
        except OSError as error:
            raise_if_no_space(error, f"for stages in {self._directory}")
            raise TailraceError(f"a stage cannot be written: {error.strerror}") from error
        stage = self._open[id] = OpenStage(feed_id, id, file, path, self._monotonic())
        self.kept.begin(id, stage.used_at)
        return stage

    def _check_room(self, nbytes: int) -> None:
        if self._bytes + nbytes > self._bytes_max:
            raise self._crowded(f"stages take {self._bytes} bytes on this node, and may take {self._bytes_max}")

    def _crowded(self, text: str) -> Overloaded:
        self._is_crowded = True
        return Overloaded(
            f"{text}. What jobs have left that failed again and again gives way after {AGE_S_MIN / 60:g} minutes"
        )

    def take_left(self, id: bytes) -> bool:
        """Whether the stage was left unsealed by an earlier run, and nobody opens it again: the caller has to, then."""
        left = self._left.get(id)
        if left is None or left.is_opening:
            return False
        left.is_opening = True
        return True

    def reopen(self, id: bytes) -> OpenStage | None:
        """For a thread: what of an unsealed stage of an earlier run is good.

        None if nothing is; the file of something that is no stage is removed.
        """
        path = self._path(id, OPEN_SUFFIX)
        try:
            file = self._disk.open(path, writable=True)
        except OSError:
            return None
        try:
            feed_id, own_id = stage_file.decode_header(file.read_at(0, stage_file.HEADER_BYTES))
            if own_id == id:
                stage = OpenStage(feed_id, id, file, path, self._monotonic())
                _scan(stage)
                return stage
        except OSError:
            file.close()
            return None
        except BadStage:
            pass
        file.close()
        self.remove([path])
        return None

    def reopened(self, id: bytes, stage: OpenStage | None) -> None:
        """What ``reopen`` gave: its writer may go on, or hears that the stage is not here."""
        left = self._left.pop(id, None)
        if left is not None:
            self._bytes -= left.nbytes
        if stage is not None:
            self._open[id] = stage
            self._bytes += stage.end - stage_file.HEADER_BYTES

    # Sealing

    def begin_seal(self, seal: StageSeal) -> OpenStage | None:
        """The stage that ``finish_seal`` is to make durable; None where it is sealed already.

        Raises UnknownStage where it has fewer blocks, BadBlock where they are others, Overloaded where it is under way.
        """
        sealed = self._sealed.get(seal.stage_id)
        if sealed is not None and sealed.feed_id == seal.feed_id:
            if sealed.checksum != seal.checksum:
                raise BadBlock(f"stage {seal.stage_id.hex()} was sealed with other blocks")
            return None
        if seal.stage_id in self._left:
            self._begin(seal.feed_id, seal.stage_id, 0, 0)
        stage = self._open.get(seal.stage_id)
        if stage is None or stage.feed_id != seal.feed_id or len(stage.entries) < seal.blocks:
            held = 0 if stage is None else len(stage.entries)
            raise UnknownStage(f"stage {seal.stage_id.hex()} has {held} of its {seal.blocks} blocks here")
        if stage.is_sealing:
            raise Overloaded(f"stage {seal.stage_id.hex()} is being sealed")
        rows = sum(entry.rows for entry in stage.entries)
        if (len(stage.entries), rows, stage.sum.intdigest()) != (seal.blocks, seal.rows, seal.checksum):
            raise BadBlock(
                f"stage {seal.stage_id.hex()} has {len(stage.entries)} blocks of {rows} rows here, or others than were "
                f"sent: {seal.blocks} blocks of {seal.rows} rows"
            )
        stage.is_sealing = True
        return stage

    def finish_seal(self, stage: OpenStage) -> SealedStage:
        """For a thread: gives the stage its end and its name, durably; then call ``sealed``.

        Raises NoSpace if its end does not fit, and the stage stays as it was: call ``not_sealed`` then, and the seal
        may be tried again. Raises UnknownStage if the disk failed otherwise: the stage is gone with its files, because
        a second fsync would succeed without having written anything. Call ``lost`` then.
        """
        sealed_us = self._wall_us()
        checksum = stage.sum.intdigest()
        end = stage_file.encode_end(stage.entries, stage.end, checksum, sealed_us)
        try:
            stage.file.write_at(stage.end, (end,), len(end))
            stage.file.truncate(stage.end + len(end))  # behind it there may be a piece of a write that failed
        except OSError as error:
            raise_if_no_space(error, f"for stages in {self._directory}")
            raise self._discard(stage, error) from error
        try:
            stage.file.sync()
            self._disk.rename(stage.path, self._path(stage.id, SEALED_SUFFIX))
            self._disk.sync_directory(self._directory)
        except OSError as error:
            raise self._discard(stage, error) from error
        stage.file.close()
        return SealedStage(stage.feed_id, stage.end + len(end), checksum, sealed_us, stage.used_at)

    def _discard(self, stage: OpenStage, error: OSError) -> UnknownStage:
        """Removes the files of a stage that could not be sealed; what its writer is to be told."""
        stage.file.close()
        self.remove([stage.path, self._path(stage.id, SEALED_SUFFIX)])
        return UnknownStage(f"stage {stage.id.hex()} could not be sealed ({error.strerror}): stage its rows anew")

    def sealed(self, stage: OpenStage, sealed: SealedStage) -> None:
        """Notes what ``finish_seal`` gave."""
        del self._open[stage.id]
        self._bytes -= stage.end - stage_file.HEADER_BYTES
        self._sealed[stage.id] = sealed
        self._bytes += sealed.nbytes

    def not_sealed(self, stage: OpenStage) -> None:
        """Notes that there was no room for the stage's end: its seal may be tried again."""
        stage.is_sealing = False

    def lost(self, stage: OpenStage) -> None:
        """Notes that the stage is gone, as ``finish_seal`` has said."""
        del self._open[stage.id]
        self._bytes -= stage.end - stage_file.HEADER_BYTES
        self.kept.forget((stage.id,))

    # Reading

    def missing(self, feed_id: bytes, ids: Iterable[bytes]) -> list[bytes]:
        """Those of ``ids`` that are no sealed stages of the feed."""
        return [id for id in ids if id not in self._sealed or self._sealed[id].feed_id != feed_id]

    def read_index(self, id: bytes) -> list[StagedBlock]:
        """For a thread: the blocks of a sealed stage. UnknownStage where it is gone, or damaged."""
        try:
            with contextlib.closing(self._disk.open(self._path(id, SEALED_SUFFIX))) as file:
                size = file.size()
                end = max(size - stage_file.FOOTER_BYTES, 0)
                footer = stage_file.decode_footer(file.read_at(end, stage_file.FOOTER_BYTES))
                index = file.read_at(footer.index_offset, max(end - footer.index_offset, 0))
                return stage_file.decode_index(index, footer)
        except (BadStage, OSError) as error:
            raise UnknownStage(f"stage {id.hex()} cannot be read: {error}") from error

    def read_blocks(self, id: bytes, entries: Sequence[StagedBlock]) -> list[Block]:
        """For a thread: these blocks of a sealed stage. UnknownStage where it is gone, or damaged."""
        try:
            with contextlib.closing(self._disk.open(self._path(id, SEALED_SUFFIX))) as file:
                return [Block.parse(file.read_at(entry.offset, entry.nbytes)) for entry in entries]
        except (BadBlock, OSError) as error:
            raise UnknownStage(f"stage {id.hex()} cannot be read: {error}") from error

    def heard(self, ids: Iterable[bytes]) -> None:
        """Notes that these sealed stages are being published: they do not give way to others meanwhile."""
        now = self._monotonic()
        for id in ids:
            if id in self._sealed:
                self._sealed[id] = self._sealed[id]._replace(heard_at=now)

    def create_scratch(self) -> tuple[File, str]:
        """For a thread: an empty file that the next start removes, and its path. Raises NoSpace, UnknownStage."""
        path = self._path(next(self._scratch_numbers).to_bytes(16, "big"), CUT_SUFFIX)
        try:
            return self._disk.create(path), path
        except OSError as error:
            raise_if_no_space(error, f"for the parts of a publish in {self._directory}")
            raise UnknownStage(f"the parts of a publish cannot be written: {error.strerror}") from error

    # Removing

    def forget(self, ids: Iterable[bytes]) -> list[str]:
        """These sealed stages are published, or nobody wants them; the files that ``remove`` is to remove."""
        paths = []
        for id in ids:
            self.kept.forget((id,))
            sealed = self._sealed.pop(id, None)
            if sealed is not None:
                self._bytes -= sealed.nbytes
                paths.append(self._path(id, SEALED_SUFFIX))
        return paths

    def expired(self, cutoff_us: int | None) -> list[str]:
        """Forgets what has lost its writer, and what was sealed at or before ``cutoff_us``; the files to remove.

        What is sealed ahead of the clock counts as sealed when this run first sees it. What an earlier run has left
        unsealed also goes by when it was last written, with the same ``cutoff_us``. Where there was no room for another
        one, what is old by `crowding` goes as well.
        """
        now = self._monotonic()
        self.kept.expire(now)
        paths = [self._abandon(s) for s in self._unsealed() if now - s.used_at >= IDLE_S_MAX]
        is_idle = now - self._began_at >= IDLE_S_MAX
        # By their own age too: a node that starts again more often than once an hour would keep them for ever.
        left = [
            id for id, left in self._left.items() if is_idle or (cutoff_us is not None and left.changed_us <= cutoff_us)
        ]
        paths += self._forget_left(left)
        wall_us = self._wall_us()
        for id, sealed in self._sealed.items():
            if is_ahead(sealed.sealed_us, wall_us):
                self._sealed[id] = sealed._replace(sealed_us=wall_us)
        if cutoff_us is not None:
            paths += self.forget([id for id, sealed in self._sealed.items() if sealed.sealed_us <= cutoff_us])
        if self._is_crowded:
            self._is_crowded = False
            paths += self._give_way(now)
        return paths

    def _give_way(self, now: float) -> list[str]:
        held = [Held(s.id, s.used_at, s.end - stage_file.HEADER_BYTES, True) for s in self._unsealed()]
        held += [Held(id, self._began_at, left.nbytes, False) for id, left in self._left.items() if not left.is_opening]
        held += [Held(id, sealed.heard_at, sealed.nbytes, False) for id, sealed in self._sealed.items()]
        ids = that_give_way(held, Bounds(self._stages_max, OPEN_MAX, self._bytes_max), now)
        if ids:
            log.warning(
                "%d stages that nobody has published give way to others: does a job fail again and again?", len(ids)
            )
        abandoned = [self._abandon(self._open[id]) for id in ids if id in self._open]
        return abandoned + self._forget_left(ids) + self.forget(ids)

    def _unsealed(self) -> list[OpenStage]:
        return [stage for stage in self._open.values() if not stage.is_sealing]

    def _forget_left(self, ids: Iterable[bytes]) -> list[str]:
        """Forgets those of ``ids`` that an earlier run has left, and nobody opens again; the files to remove."""
        paths = []
        for id in ids:
            left = self._left.get(id)
            if left is not None and not left.is_opening:
                del self._left[id]
                self._bytes -= left.nbytes
                paths.append(self._path(id, OPEN_SUFFIX))
        return paths

    def _abandon(self, stage: OpenStage) -> str:
        """Forgets an unsealed stage; the file to remove."""
        del self._open[stage.id]
        self.kept.forget((stage.id,))
        self._bytes -= stage.end - stage_file.HEADER_BYTES
        stage.file.close()
        return stage.path

    def remove(self, paths: Sequence[str]) -> None:
        """For a thread: removes files. What cannot be removed is found by the next start, and expires there."""
        for path in paths:
            with contextlib.suppress(OSError):
                self._disk.remove(path)

    def close(self) -> None:
        """The node stops: its unsealed stages are opened again by the next run."""
        for stage in self._open.values():
            stage.file.close()

    def _path(self, id: bytes, suffix: str) -> str:
        return os.path.join(self._directory, id.hex() + suffix)


def _scan(stage: OpenStage) -> None:
    """Notes the good blocks at the beginning of the file. At most SCAN_BYTES, or one block, are in memory."""
    size = stage.file.size()
    while stage.end < size:
        data = stage.file.read_at(stage.end, min(SCAN_BYTES, size - stage.end))
        if not _scan_part(stage, data):
            nbytes = _bytes_of_first_block(data)
            if not len(data) < nbytes <= size - stage.end:
                return
            if not _scan_part(stage, stage.file.read_at(stage.end, nbytes)):
                return


def _bytes_of_first_block(data: bytes) -> int:
    """The size of the block that ``data`` begins with, by its header; 0 if there is no good header."""
    try:
        return HEADER_BYTES + BlockHeader.unpack(data).stored_bytes
    except BadBlock:
        return 0


def _scan_part(stage: OpenStage, data: bytes) -> bool:
    """Notes the whole blocks that ``data`` begins with; whether there are any."""
    offset = 0
    while offset < len(data):
        try:
            block = Block.parse_at(data, offset)
        except BadBlock:
            break
        stage.note(block)
        offset += block.nbytes
    return offset > 0


def _id_of(name: str) -> bytes | None:
    stem, dot, suffix = name.partition(".")
    if dot + suffix not in (OPEN_SUFFIX, SEALED_SUFFIX) or len(stem) != 32:
        return None
    try:
        return bytes.fromhex(stem)
    except ValueError:
        return None
