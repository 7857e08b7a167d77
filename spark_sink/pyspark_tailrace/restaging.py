"""Keeps the blocks of a task, and stages them again if the node that had their stage is lost.

    task:    blocks ──> stage on the leader          and a copy: in the task's message up to ``restage_bytes``,
                                                     above that in a file (`kept_files`),
                                                     or, without such a file, on a majority of the nodes
    driver:  publish ──UnknownStage──> the copies ──> stages on the new leader ──> the same publish again

Spark runs no task again after the tasks are done, so a lost stage would end the query. A copy within Spark, or on its
disk, costs less than one on other nodes. So a stage is sealed at level quorum only if there is no other copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark_tailrace.connections import IN_FLIGHT_BYTES
from pyspark_tailrace.kept_files import KeptBlock, KeptFile, KeptFileWriter, KeptFolder
from tailrace.block import Block
from tailrace.blocking import Feed, Stage
from tailrace.errors import BadBlock, UnknownStage
from tailrace.model import SealLevel
from tailrace.requests.staging import SealedStage

log = logging.getLogger("tailrace.spark")

# How often a stage, or the stages of a batch, are made again: the leader changes a few times a minute at most.
RESTAGES_MAX = 8


class KeptStage(NamedTuple):
    """The blocks of a stage in their order, or the file that has them, and the feed for which they were staged."""

    feed_id: bytes
    blocks: tuple[KeptBlock, ...] | KeptFile

    def read(self) -> Iterable[KeptBlock]:
        """Returns the blocks. Taking them raises OSError if the file does not have them any more."""
        return self.blocks.read() if isinstance(self.blocks, KeptFile) else self.blocks


class Keeper:
    """Keeps the blocks of one task, until there is no room for them. Use it as a context manager.

    All blocks of a stage are kept, or none.

    Args:
        bytes_max: The most bytes to keep in memory.
        folder: The folder for the stages above that. If it is on another machine, a task with more keeps no more.
        batch: The name of the micro-batch or job in this folder.
    """

    def __init__(self, bytes_max: int, folder: KeptFolder, batch: str = "") -> None:
        self._bytes_left = bytes_max
        self._folder = folder
        self._batch = batch
        self._blocks: list[tuple[Block, int]] = []
        self._file: KeptFileWriter | None = None
        self.is_full = False

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, block: Block, digest: int) -> None:
        """Keeps a block of the current stage, or drops all blocks of this stage if there is no room for it."""
        if self.is_full:
            return
        self._bytes_left -= block.nbytes
        if self._bytes_left >= 0:
            self._blocks.append((block, digest))
        else:
            self._add_to_file(block, digest)

    def _add_to_file(self, block: Block, digest: int) -> None:
        try:
            if self._file is None:
                path = self._folder.folder_of(self._batch)
                if path is None:
                    self._drop()
                    return
                self._file = KeptFileWriter(path)
                for kept in self._blocks:
                    self._file.add(*kept)
                self._blocks.clear()
            self._file.add(block, digest)
        except OSError as error:
            log.warning("tailrace: a task keeps no copy of its rows in a file, but on other nodes: %s", error)
            self._drop()

    def _drop(self) -> None:
        self.is_full = True
        self._blocks.clear()
        if self._file is not None:
            self._file.remove()
            self._file = None

    def blocks(self) -> tuple[KeptBlock, ...] | KeptFile | None:
        """Returns the blocks of the current stage; None if they were dropped."""
        if self._file is not None:
            try:
                return self._file.kept()
            except OSError as error:
                log.warning("tailrace: a task keeps no copy of its rows in a file, but on other nodes: %s", error)
                self._drop()
        if self.is_full:
            return None
        return tuple(KeptBlock(block.head + bytes(block.body), digest) for block, digest in self._blocks)

    def next_stage(self) -> None:
        """Begins another stage of the task."""
        self._blocks.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


class KeptWriter:
    """Writes one stage of a task, and begins it again from the kept blocks if the node has lost it.

    ``else_at_quorum``: a stage without kept blocks is sealed at level quorum.
    """

    def __init__(self, feed: Feed, keeper: Keeper, *, else_at_quorum: bool) -> None:
        self._feed = feed
        self._keeper = keeper
        self._level: SealLevel = "quorum" if else_at_quorum else "disk"
        self._restages = 0
        self._stage = feed.stage(in_flight_bytes=IN_FLIGHT_BYTES)
        keeper.next_stage()

    def send(self, block: Block, digest: int) -> None:
        """Sends a block. Raises UnknownStage if the stage is lost and its blocks were not kept, Unreachable, ..."""
        self._keeper.add(block, digest)
        try:
            self._stage.send(block, digest=digest)
        except UnknownStage as error:
            self._begin_again(error)

    def seal(self) -> tuple[SealedStage, KeptStage | None]:
        """Ends the stage. Returns it with its blocks, if they were kept. Raises as ``send``."""
        while True:
            blocks = self._keeper.blocks()
            try:
                sealed = self._stage.seal("disk" if blocks is not None else self._level)
            except UnknownStage as error:
                self._begin_again(error)
                continue
            return sealed, None if blocks is None else KeptStage(self._feed.resolve().feed_id, blocks)

    def _begin_again(self, error: UnknownStage) -> None:
        blocks = self._keeper.blocks()
        while True:
            self._restages += 1
            if blocks is None or self._restages > RESTAGES_MAX:
                raise error
            self._stage = self._feed.stage(in_flight_bytes=IN_FLIGHT_BYTES)
            try:
                _send(self._stage, KeptStage(b"", blocks))
            except UnknownStage as later:
                error = later
            except (OSError, BadBlock) as lost:
                log.warning("tailrace: the copy of a stage is lost, too: %s", lost)
                raise error from lost
            else:
                return


def restage(feed: Feed, stages: Sequence[KeptStage | None]) -> list[SealedStage | None] | None:
    """Stages kept blocks again, each of ``stages`` under a new id; None in the result stands for one that was not kept.

    Returns None if no stage was kept, the file of one is lost, or one was for another feed of the same name. Raises
    UnknownStage if the node loses one of the new stages, Unreachable, ...
    """
    kept = [stage for stage in stages if stage is not None]
    if not kept or any(stage.feed_id != feed.resolve().feed_id for stage in kept):
        return None
    sealed: list[SealedStage | None] = []
    for stage in stages:
        if stage is None:
            sealed.append(None)
            continue
        again = feed.stage(in_flight_bytes=IN_FLIGHT_BYTES)
        try:
            _send(again, stage)
        except (OSError, BadBlock) as error:
            log.warning("tailrace: the copy of a stage is lost, too: %s", error)
            return None
        sealed.append(again.seal())
    return sealed


def _send(stage: Stage, kept: KeptStage) -> None:
    for block in kept.read():
        stage.send(Block.parse(block.data), digest=block.digest)
