"""The stages of a node: files of blocks that no reader sees until a publish names them.

    STAGE_BLOCK ──> <id>.open ... STAGE_SEAL ──> footer, fsync ──> <id>.stage, directory fsynced ──> read by a PUBLISH

A stage is a file of its own and not a record of the journal, which could not be trimmed while the stage waits. If the
node stops before the seal, the next run opens the stage again when its writer returns. The writer says how many blocks
were acknowledged; if a crash lost one of these, the stage is discarded.

A stage that is never published expires by its age, which counts only the time that a node was up.
The files are those of `stage_directory.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tailrace.block import Block
from tailrace.errors import BadBlock, Overloaded, TailraceError, UnknownStage
from tailrace.wire.stage_messages import StageSeal
from tailrace_server.host.disk import Disk, raise_if_no_space
from tailrace_server.publishing.eviction import AGE_S_MIN, StageBounds, StageUse, stages_to_evict
from tailrace_server.publishing.kept_blocks import KeptBlocks
from tailrace_server.publishing.open_stage import LeftStage, OpenStage
from tailrace_server.publishing.stage_copy import StageCopy
from tailrace_server.publishing.stage_directory import StageDirectory
from tailrace_server.publishing.stage_reader import SealedFile
from tailrace_server.state.ahead import is_ahead

log = logging.getLogger("tailrace.server")

# Each open stage has an open file; a Spark task writes one stage at a time.
OPEN_MAX = 256
# An unsealed stage without a block for this many seconds has lost its writer.
IDLE_S_MAX = 3_600.0


class StageStatistics(NamedTuple):
    """The counts of open and sealed stages, and the bytes of all stages, for status."""

    open: int
    sealed: int
    bytes: int


class Stages:
    """The stages of one node. Only methods of its `directory` may be called off the node's loop."""

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
        self.directory = StageDirectory(disk, data, monotonic, wall_us)
        self._stages_max = stages_max
        self._bytes_max = bytes_max
        self.kept = KeptBlocks(kept_bytes_max)
        self._monotonic = monotonic
        self._wall_us = wall_us
        self._open: dict[bytes, OpenStage] = {}
        self._sealed: dict[bytes, SealedFile] = {}
        self._left: dict[bytes, LeftStage] = {}
        self._bytes = 0
        self._copying = 0  # copies of other nodes' stages that are under way
        self._is_crowded = False  # a stage was refused for lack of room since the last ``expired``
        self._began_at = monotonic()

    def set_bounds(self, stages_max: int, bytes_max: int, kept_bytes_max: int) -> None:
        """Changes the bounds. Stages that are there stay, and count."""
        self._stages_max, self._bytes_max = stages_max, bytes_max
        self.kept.set_bytes_max(kept_bytes_max)

    def statistics(self) -> StageStatistics:
        """Returns the counts for status."""
        return StageStatistics(len(self._open), len(self._sealed), self._bytes)

    def load(self) -> None:
        """Finds the stages of earlier runs, at a start. Removes a sealed stage that is damaged. OSError."""
        self._left, self._sealed = self.directory.find()
        self._bytes += sum(left.nbytes for left in self._left.values())
        self._bytes += sum(sealed.nbytes for sealed in self._sealed.values())

    # Writing

    def take(self, feed_id: bytes, id: bytes, number: int, acknowledged: int, block: Block) -> int:
        """Adds a block that has been checked; returns how many blocks the stage has now.

        A block that the stage has already changes nothing.

        Args:
            feed_id: The feed of the stage.
            id: The stage's id; an unknown one begins a stage.
            number: The block's number in the stage, from 0.
            acknowledged: How many blocks of the stage the writer got an answer for.
            block: The block.

        Raises:
            UnknownStage: Acknowledged blocks are missing, or the stage is sealed.
            Overloaded, NoSpace: The writer has to try again.
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
            raise_if_no_space(error, f"for stages in {self.directory.path}")
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
        if len(self._open) >= OPEN_MAX:
            raise self._crowded(f"this node holds {unsealed} stages that are being written, at most {OPEN_MAX}")
        self._check_count()
        self._check_room(nbytes)
        stage = self._open[id] = self.directory.create(feed_id, id)
        self.kept.begin(id, stage.used_at)
        return stage

    def _check_count(self) -> None:
        unsealed, sealed = len(self._open) + len(self._left), len(self._sealed) + self._copying
        if unsealed + sealed >= self._stages_max:
            raise self._crowded(
                f"this node holds {unsealed} stages that are being written and {sealed} that are sealed: it holds at "
                f"most {OPEN_MAX} that are being written, and {self._stages_max} together"
            )

    def _check_room(self, nbytes: int) -> None:
        if self._bytes + nbytes > self._bytes_max:
            raise self._crowded(f"stages take {self._bytes} bytes on this node, and may take {self._bytes_max}")

    def _crowded(self, text: str) -> Overloaded:
        self._is_crowded = True
        return Overloaded(
            f"{text}. Stages that failed jobs left give way after {AGE_S_MIN / 60:g} minutes: try again then"
        )

    def take_left(self, id: bytes) -> bool:
        """Returns True if an earlier run left the stage unsealed and no task opens it: then the caller has to."""
        left = self._left.get(id)
        if left is None or left.is_opening:
            return False
        left.is_opening = True
        return True

    def reopened(self, id: bytes, stage: OpenStage | None) -> None:
        """Notes the result of `StageDirectory.reopen`.

        The writer may go on, or is told that the stage is not here (None).
        """
        left = self._left.pop(id, None)
        if left is not None:
            self._bytes -= left.nbytes
        if stage is not None:
            self._open[id] = stage
            self._bytes += stage.nbytes

    # Sealing

    def begin_seal(self, seal: StageSeal) -> OpenStage | None:
        """Returns the stage that `StageDirectory.seal` is to make durable; None if it is sealed already.

        Raises UnknownStage if it has fewer blocks, BadBlock if its blocks differ, Overloaded if it is being sealed.
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
                f"stage {seal.stage_id.hex()} has {len(stage.entries)} blocks of {rows} rows here, which are not the "
                f"{seal.blocks} blocks of {seal.rows} rows that were sent: stage them anew"
            )
        stage.is_sealing = True
        return stage

    def sealed(self, stage: OpenStage, sealed: SealedFile) -> None:
        """Notes the result of `StageDirectory.seal`."""
        del self._open[stage.id]
        self._bytes -= stage.nbytes
        self._sealed[stage.id] = sealed
        self._bytes += sealed.nbytes

    def not_sealed(self, stage: OpenStage) -> None:
        """Notes that there was no room for the stage's footer: its seal may be tried again."""
        stage.is_sealing = False

    def lost(self, stage: OpenStage) -> None:
        """Notes that `StageDirectory.seal` has raised UnknownStage: the stage is gone."""
        del self._open[stage.id]
        self._bytes -= stage.nbytes
        self.kept.forget((stage.id,))

    # Copying

    def begin_copy(self, feed_id: bytes, id: bytes, nbytes: int) -> StageCopy:
        """Takes room for the copy of another node's sealed stage. Call ``end_copy`` in any case.

        Raises Overloaded, TailraceError.
        """
        self._check_count()
        self._check_room(nbytes)
        copy = self.directory.begin_copy(feed_id, id, nbytes)
        self._copying += 1
        self._bytes += nbytes
        return copy

    def end_copy(self, copy: StageCopy, sealed: SealedFile | None) -> None:
        """Notes that the copy is complete, with its result of ``seal``, or that it was given up (None)."""
        self._copying -= 1
        self._bytes -= copy.nbytes
        if sealed is not None and copy.id not in self._sealed:
            self._sealed[copy.id] = sealed
            self._bytes += sealed.nbytes

    def note_copied(self, id: bytes) -> None:
        """Notes that other nodes may have copies of this sealed stage."""
        if id in self._sealed:
            self._sealed[id] = self._sealed[id]._replace(is_copied=True)

    def copied(self, ids: Iterable[bytes]) -> tuple[bytes, ...]:
        """Returns those of these sealed stages of which other nodes may have copies."""
        return tuple(id for id in ids if id in self._sealed and self._sealed[id].is_copied)

    # Reading

    def held(self, feed_id: bytes, ids: Iterable[bytes]) -> list[bytes]:
        """Returns the ``ids`` that are sealed stages of the feed."""
        return [id for id in ids if id in self._sealed and self._sealed[id].feed_id == feed_id]

    def missing(self, feed_id: bytes, ids: Iterable[bytes]) -> list[bytes]:
        """Returns the ``ids`` that are not sealed stages of the feed."""
        return [id for id in ids if id not in self._sealed or self._sealed[id].feed_id != feed_id]

    def heard(self, ids: Iterable[bytes]) -> None:
        """Notes that these sealed stages are being published, so that they are not evicted."""
        now = self._monotonic()
        for id in ids:
            if id in self._sealed:
                self._sealed[id] = self._sealed[id]._replace(heard_at=now)

    # Removing

    def forget(self, ids: Iterable[bytes]) -> list[str]:
        """Forgets these sealed stages, which are published or expired; returns their files, to be removed."""
        paths = []
        for id in ids:
            self.kept.forget((id,))
            sealed = self._sealed.pop(id, None)
            if sealed is not None:
                self._bytes -= sealed.nbytes
                paths.append(self.directory.sealed_path(id))
        return paths

    def expired(self, cutoff_us: int | None) -> list[str]:
        """Forgets unsealed stages that have lost their writer, and old stages; returns their files, to be removed.

        A sealed stage is old if it was sealed at or before ``cutoff_us`` of the wall clock (None: none is). A stage
        that was sealed ahead of the clock counts as sealed when this run first sees it. An unsealed stage of an earlier
        run is old if it was last written at or before ``cutoff_us``. If a stage was refused for lack of room, the
        stages that `eviction` chooses go as well.
        """
        now = self._monotonic()
        self.kept.expire(now)
        paths = [self._abandon(s) for s in self._unsealed() if now - s.used_at >= IDLE_S_MAX]
        is_idle = now - self._began_at >= IDLE_S_MAX
        # By their own age too: a node that restarts more often than once an hour would never be idle for long enough.
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
            paths += self._evict(now)
        return paths

    def _evict(self, now: float) -> list[str]:
        uses = [StageUse(s.id, s.used_at, s.nbytes, True) for s in self._unsealed()]
        uses += [
            StageUse(id, self._began_at, left.nbytes, False) for id, left in self._left.items() if not left.is_opening
        ]
        uses += [StageUse(id, sealed.heard_at, sealed.nbytes, False) for id, sealed in self._sealed.items()]
        ids = stages_to_evict(uses, StageBounds(self._stages_max, OPEN_MAX, self._bytes_max), now)
        if ids:
            log.warning(
                "removing %d stages that were not published, for lack of room: does a job fail again and again?",
                len(ids),
            )
        abandoned = [self._abandon(self._open[id]) for id in ids if id in self._open]
        return abandoned + self._forget_left(ids) + self.forget(ids)

    def _unsealed(self) -> list[OpenStage]:
        return [stage for stage in self._open.values() if not stage.is_sealing]

    def _forget_left(self, ids: Iterable[bytes]) -> list[str]:
        """Forgets those of ``ids`` that an earlier run left and no task opens; returns their files, to be removed."""
        paths = []
        for id in ids:
            left = self._left.get(id)
            if left is not None and not left.is_opening:
                del self._left[id]
                self._bytes -= left.nbytes
                paths.append(self.directory.open_path(id))
        return paths

    def _abandon(self, stage: OpenStage) -> str:
        """Forgets an unsealed stage; returns its file, to be removed."""
        del self._open[stage.id]
        self.kept.forget((stage.id,))
        self._bytes -= stage.nbytes
        stage.file.close()
        return stage.path

    def close(self) -> None:
        """Closes the files of unsealed stages, when the node stops; the next run opens them again."""
        for stage in self._open.values():
            stage.file.close()
