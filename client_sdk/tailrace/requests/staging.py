"""Numbers the blocks of a stage, and makes the requests of stages and publishes. Pure.

A stage is a set of blocks that no consumer sees until it is published. Its blocks are numbered from 0. The node takes
them in this order, so it recognises a block that is sent again after a broken connection by its number.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import xxhash

from tailrace.block import DIGEST_MAX, Block, digest_of_block, sum_digests
from tailrace.errors import ProtocolError, TailraceError, TooLarge
from tailrace.model import Level, VersionRange
from tailrace.model.arguments import count
from tailrace.requests.outbox import Settle
from tailrace.requests.request import Encode, Request, Sequence
from tailrace.requests.session import RequestSession
from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_messages import (
    NAME_CHARS_MAX,
    STAGE_ID_BYTES,
    STAGES_MAX,
    Publish,
    StageBlock,
    Staged,
    StageSeal,
    published_from_json,
)

# Why a stage takes no more rows.
SEALED = "the stage was sealed, or is being sealed: make another one for more rows"


class SealedStage(NamedTuple):
    """A stage that can be published.

    Attributes:
        stage_id: The id, 16 random bytes.
        partitions: The partitions that have rows, ascending.
        blocks: The number of blocks.
        rows: The number of rows.
        digest: The digest of the rows, by which a batch that comes again is compared with the one that was published.
            None if it is not known.
    """

    stage_id: bytes
    partitions: tuple[int, ...]
    blocks: int
    rows: int
    digest: int | None = None


class Published(NamedTuple):
    """The result of a publish.

    Attributes:
        written: The versions that were written, by partition. If a partition took the batch in parts, the range begins
            with the first part and ends with the last one. Rows of other writers may lie between two parts.
        skipped: The partitions that had the batch already.
    """

    written: dict[int, VersionRange]
    skipped: tuple[int, ...]


class PublishSteps:
    """Joins the answers to one publish, which a node may do in several steps."""

    def __init__(self) -> None:
        self._written: dict[int, VersionRange] = {}
        self._skipped: tuple[int, ...] = ()

    def take(self, value: dict[str, Any]) -> bool:
        """Takes the answer to a step; returns whether the node is to be asked for another one. ProtocolError."""
        answer = published_from_json(value)
        for versions in answer.written:
            first = self._written.get(versions.partition, versions).first_seq
            self._written[versions.partition] = versions._replace(first_seq=min(first, versions.first_seq))
        self._skipped = tuple(partition for partition in answer.skipped if partition not in self._written)
        return answer.more

    @property
    def published(self) -> Published:
        """The result of all steps."""
        return Published(self._written, self._skipped)


class StageRequest(NamedTuple):
    """A request of a stage, as a step of a session (`tailrace.requests.plan`)."""

    encode: Encode
    decode: Callable[[Frame], Any]
    done: Callable[[Any, TailraceError | None], None]
    sequence: Sequence

    def queue(
        self, session: RequestSession, done: Callable[[Any, TailraceError | None], None], deadline: float
    ) -> tuple[Request]:
        """Queues the request in ``session`` behind the earlier requests of the stage."""
        return (session.ask(self.encode, self.decode, done, self.sequence, deadline),)


class StageProgress:
    """Numbers a stage's blocks, and counts those that the node has acknowledged."""

    def __init__(self, feed_id: bytes, *, stage_id: bytes | None = None) -> None:
        self.feed_id = feed_id
        self.stage_id = secrets.token_bytes(STAGE_ID_BYTES) if stage_id is None else stage_id
        self.rows = 0
        self.sealed: SealedStage | None = None
        self._sequence = Sequence()
        self._sent = self._acknowledged = 0
        self._partitions: set[int] = set()
        self._sum = xxhash.xxh3_64()
        self._digest = 0

    def block(self, block: Block, settle: Settle, digest: int | None = None) -> StageRequest:
        """Returns the request for the next block; ``settle`` is called with its answer.

        ``digest`` is that of the block's rows if the caller has it: else the block is opened for it.
        """
        number = self._sent
        self._digest = (self._digest + (digest_of_block(block) if digest is None else digest)) & DIGEST_MAX
        self._sent += 1
        self.rows += block.rows
        self._partitions.add(block.header.partition)
        self._sum.update(block.head)

        def encode(id: int) -> tuple[bytes, bytes | memoryview]:
            acknowledged = min(self._acknowledged, number)
            return StageBlock.encode(self.feed_id, self.stage_id, number, acknowledged, block, id)

        def done(staged: Staged | None, error: TailraceError | None) -> None:
            if staged is not None:
                self._acknowledged = max(self._acknowledged, staged.blocks)
            settle(error)

        return StageRequest(encode, _decode_staged, done, self._sequence)

    def seal(self, settle: Settle, level: Level) -> StageRequest:
        """Returns the request that ends the stage; its answer sets ``sealed``, then ``settle`` is called."""
        message = StageSeal(self.feed_id, self.stage_id, self._sent, self.rows, self._sum.intdigest(), level)

        def done(result: object, error: TailraceError | None) -> None:
            if error is None:
                partitions = tuple(sorted(self._partitions))
                self.sealed = SealedStage(self.stage_id, partitions, self._sent, self.rows, self._digest)
            settle(error)

        return StageRequest(message.encode, _decode_result, done, self._sequence)

    @property
    def is_empty(self) -> bool:
        """No row was staged, so there is nothing to seal."""
        return not self._sent


def publish_request(
    feed_id: bytes, sink: str, batch: int, stages: Iterable[SealedStage], origin: str | None, *, compare: bool = True
) -> dict[str, Any]:
    """Returns the body of a PUBLISH. Raises TypeError, ValueError, or TooLarge if there are too many stages."""
    for what, name in (("sink", sink), ("origin", sink if origin is None else origin)):
        if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
            raise ValueError(f"{what} is {name[:60]!r}: 1 to {NAME_CHARS_MAX} printable characters are needed")
    batch = count("batch", batch)
    stages = [stage for stage in stages if stage.blocks]
    partitions = sorted({partition for stage in stages for partition in stage.partitions})
    ids = tuple(stage.stage_id for stage in stages)
    if len(set(ids)) < len(ids):
        raise ValueError("a stage is given twice: its rows would be published twice")
    if len(ids) > STAGES_MAX:
        raise TooLarge(
            f"a publish of {len(ids)} stages; at most {STAGES_MAX}: make fewer, larger ones, or more batches"
        )
    digest = sum_digests(stage.digest for stage in stages) if compare else None
    origin = sink if origin is None else origin
    return Publish(feed_id, sink, origin, batch, ids, tuple(partitions), digest, in_steps=True).to_json()


def _decode_staged(frame: Frame) -> Staged:
    if frame.opcode is not Opcode.STAGED:
        raise ProtocolError(f"the answer to a STAGE_BLOCK is {frame.opcode.name}")
    return Staged.decode(frame.body)


def _decode_result(frame: Frame) -> object:
    if frame.opcode is not Opcode.RESULT:
        raise ProtocolError(f"the answer to a STAGE_SEAL is {frame.opcode.name}")
    return True
