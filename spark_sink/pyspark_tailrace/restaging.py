"""Keeps the blocks of a task, and stages them again if the node that had their stage is lost.

    task:    blocks ──> stage on the leader          and a copy in the task's message, up to ``restage_bytes``
    driver:  publish ──UnknownStage──> the copies ──> stages on the new leader ──> the same publish again

A stage is on one node only. Spark runs no task again after the tasks are done, so a lost stage would end the query.
The alternative is to send each stage to a majority of the nodes before it is sealed. It costs each row of each
micro-batch a second copy over the network. Here only a small micro-batch costs a copy, and only within Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark_tailrace.connections import IN_FLIGHT_BYTES
from tailrace.block import Block
from tailrace.blocking import Feed, Stage
from tailrace.errors import UnknownStage
from tailrace.requests.staging import SealedStage

# How often a stage, or the stages of a batch, are made again: the leader changes a few times a minute at most.
RESTAGES_MAX = 8


class KeptBlock(NamedTuple):
    """The bytes of a block, and the digest of its rows."""

    data: bytes
    digest: int


class KeptStage(NamedTuple):
    """The blocks of a stage in their order, and the feed for which they were staged."""

    feed_id: bytes
    blocks: tuple[KeptBlock, ...]


class Keeper:
    """Keeps the blocks of one task, all of them or none.

    Args:
        bytes_max: The most bytes to keep. A task with more keeps nothing.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        self._blocks: list[KeptBlock] = []
        self.is_full = False

    def add(self, block: Block, digest: int) -> None:
        """Keeps a block of the current stage, or drops all blocks if there is no room for it."""
        self._bytes_left -= block.nbytes
        if self._bytes_left < 0:
            self.is_full = True
            self._blocks.clear()
        else:
            self._blocks.append(KeptBlock(block.head + bytes(block.body), digest))

    def blocks(self) -> tuple[KeptBlock, ...] | None:
        """Returns the blocks of the current stage; None if they were dropped."""
        return None if self.is_full else tuple(self._blocks)

    def next_stage(self) -> None:
        """Begins another stage of the task."""
        self._blocks.clear()


class KeptWriter:
    """Writes one stage of a task, and begins it again from the kept blocks if the node has lost it."""

    def __init__(self, feed: Feed, keeper: Keeper) -> None:
        self._feed = feed
        self._keeper = keeper
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
            try:
                sealed = self._stage.seal()
            except UnknownStage as error:
                self._begin_again(error)
                continue
            blocks = self._keeper.blocks()
            return sealed, None if blocks is None else KeptStage(self._feed.resolve().feed_id, blocks)

    def _begin_again(self, error: UnknownStage) -> None:
        blocks = self._keeper.blocks()
        while True:
            self._restages += 1
            if blocks is None or self._restages > RESTAGES_MAX:
                raise error
            self._stage = self._feed.stage(in_flight_bytes=IN_FLIGHT_BYTES)
            try:
                _send(self._stage, blocks)
            except UnknownStage as later:
                error = later
            else:
                return


def restage(feed: Feed, stages: Sequence[KeptStage | None]) -> list[SealedStage] | None:
    """Stages kept blocks again, each of ``stages`` under a new id.

    Returns None if a stage was not kept, or was for another feed of the same name. Raises UnknownStage if the node
    loses one of the new stages, Unreachable, ...
    """
    kept = [stage for stage in stages if stage is not None and stage.feed_id == feed.resolve().feed_id]
    if len(kept) < len(stages):
        return None
    sealed = []
    for stage in kept:
        again = feed.stage(in_flight_bytes=IN_FLIGHT_BYTES)
        _send(again, stage.blocks)
        sealed.append(again.seal())
    return sealed


def _send(stage: Stage, blocks: Iterable[KeptBlock]) -> None:
    for kept in blocks:
        stage.send(Block.parse(kept.data), digest=kept.digest)
