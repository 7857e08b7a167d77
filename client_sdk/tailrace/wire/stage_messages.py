"""The messages of stages and their publishes. Pure. Layouts: docs/protocol/messages.

STAGE_BLOCK ──> STAGED       a block for a stage; the number of blocks that the stage has
STAGE_SEAL  ──> RESULT       the stage is complete, and is made durable: here, or on a majority of the set
PUBLISH     ──> RESULT       the rows of some stages, in one step for each partition
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from tailrace.block import Block
from tailrace.errors import ProtocolError
from tailrace.model import Level, VersionRange
from tailrace.wire.bodies import decode_json, encode_json, field, hex_field, seq_field, unpack
from tailrace.wire.frames import frame_header
from tailrace.wire.opcodes import Opcode

STAGE_ID_BYTES = 16
# The stages of one PUBLISH: enough for a stage of each task of a large job; it bounds the JSON.
STAGES_MAX = 4_096
PARTITIONS_MAX = 65_536
NAME_CHARS_MAX = 200
DIGEST_BYTES = 8
# The level of a STAGE_SEAL that asks for a majority. Older clients send 0, which is level disk.
_AT_QUORUM = int(Level.QUORUM)

_BLOCK = struct.Struct("<16s16sII")
_STAGED = struct.Struct("<I4x")
_SEAL = struct.Struct("<16s16sIIQQ")


class StageBlock(NamedTuple):
    """A block for a stage: its number there, from 0, and the number of blocks that were acknowledged before it."""

    feed_id: bytes
    stage_id: bytes
    number: int
    acknowledged: int
    block: memoryview

    @staticmethod
    def encode(
        feed_id: bytes, stage_id: bytes, number: int, acknowledged: int, block: Block, id: int
    ) -> tuple[bytes, bytes | memoryview]:
        """Returns the frame in two buffers. The second one is the body of the block."""
        start = _BLOCK.pack(feed_id, stage_id, number, acknowledged) + block.head
        return frame_header(Opcode.STAGE_BLOCK, len(start) + len(block.body), id) + start, block.body

    @classmethod
    def decode(cls, body: memoryview) -> StageBlock:
        feed_id, stage_id, number, acknowledged = unpack(_BLOCK, body, "STAGE_BLOCK")
        if acknowledged > number:
            raise ProtocolError(f"STAGE_BLOCK: block {number}, of which {acknowledged} are acknowledged")
        return cls(feed_id, stage_id, number, acknowledged, body[_BLOCK.size :])


class Staged(NamedTuple):
    """The answer to a STAGE_BLOCK: the stage has its first ``blocks`` blocks."""

    blocks: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.STAGED, _STAGED.size, id) + _STAGED.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Staged:
        return cls(*unpack(_STAGED, body, "STAGED"))


class StageSeal(NamedTuple):
    """Seals a stage with these numbers of blocks and rows. ``checksum`` is XXH3-64 of all block headers, joined.

    ``level``: DISK is answered when the stage is on the node's disk, QUORUM when it is on the disks of a majority.
    """

    feed_id: bytes
    stage_id: bytes
    blocks: int
    rows: int
    checksum: int
    level: Level = Level.DISK

    def encode(self, id: int) -> bytes:
        wire_level = _AT_QUORUM if self.level is Level.QUORUM else 0
        packed = _SEAL.pack(self.feed_id, self.stage_id, self.blocks, wire_level, self.rows, self.checksum)
        return frame_header(Opcode.STAGE_SEAL, _SEAL.size, id) + packed

    @classmethod
    def decode(cls, body: bytes | memoryview) -> StageSeal:
        feed_id, stage_id, blocks, wire_level, rows, checksum = unpack(_SEAL, body, "STAGE_SEAL")
        level = Level.QUORUM if wire_level == _AT_QUORUM else Level.DISK
        return cls(feed_id, stage_id, blocks, rows, checksum, level)


class Publish(NamedTuple):
    """Batch ``batch`` of a sink, numbered by ``origin``: the rows of these sealed stages, in these ``partitions``.

    ``digest`` is that of all rows of the batch (`tailrace.block.row_digest`); None: they are not compared. With
    ``in_steps`` the node may answer when a part is done, and is then asked again.
    """

    feed_id: bytes
    sink: str
    origin: str
    batch: int
    stages: tuple[bytes, ...]
    partitions: tuple[int, ...]
    digest: int | None = None
    in_steps: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the body of a PUBLISH."""
        value: dict[str, Any] = {
            "feed_id": self.feed_id.hex(),
            "sink": self.sink,
            "origin": self.origin,
            "batch": self.batch,
            "stages": [stage.hex() for stage in self.stages],
            "partitions": list(self.partitions),
        }
        if self.digest is not None:
            value["digest"] = digest_to_json(self.digest)
        if self.in_steps:
            value["in_steps"] = True
        return value

    @classmethod
    def decode(cls, body: bytes | memoryview) -> Publish:
        what = "PUBLISH"
        value = decode_json(body, what)
        sink, origin = (_name(value, name) for name in ("sink", "origin"))
        stages, partitions = (field(value, name, list, what) for name in ("stages", "partitions"))
        if len(stages) > STAGES_MAX or len(partitions) > PARTITIONS_MAX:
            raise ProtocolError(
                f"{what}: {len(stages)} stages, {len(partitions)} partitions; at most {STAGES_MAX} stages"
            )
        if not all(type(number) is int and 0 <= number < PARTITIONS_MAX for number in partitions):
            raise ProtocolError(f"{what}: field 'partitions' is not a list of partitions")
        ids = tuple(hex_field({"stages": stage}, "stages", STAGE_ID_BYTES, what) for stage in stages)
        if len(set(ids)) < len(ids):  # its rows would be published twice
            raise ProtocolError(f"{what}: a stage is named twice")
        feed_id = hex_field(value, "feed_id", 16, what)
        digest = None
        if value.get("digest") is not None:  # older clients do not have it
            digest = int.from_bytes(hex_field(value, "digest", DIGEST_BYTES, what))
        in_steps = value.get("in_steps") is True  # neither
        return cls(feed_id, sink, origin, seq_field(value, "batch", what), ids, tuple(partitions), digest, in_steps)


def digest_to_json(digest: int) -> str:
    """Returns the digest in 16 hexadecimal digits: not every JSON reader keeps integers of 64 bits."""
    return digest.to_bytes(DIGEST_BYTES).hex()


def _name(value: dict[str, Any], name: str) -> str:
    found: str = field(value, name, str, "PUBLISH")
    if not 1 <= len(found) <= NAME_CHARS_MAX or not found.isprintable():
        raise ProtocolError(
            f"PUBLISH: field {name!r} is {found[:60]!r}, not 1 to {NAME_CHARS_MAX} printable characters"
        )
    return found


def published_to_json(written: Iterable[VersionRange], skipped: Iterable[int], *, more: bool = False) -> dict[str, Any]:
    """Returns the RESULT of a PUBLISH: a range for each written part; ``more``: the client has to ask again."""
    ranges = [[r.partition, r.branch.hex(), r.first_seq, r.last_seq] for r in written]
    return {"written": ranges, "skipped": [*skipped], "more": more}


class PublishAnswer(NamedTuple):
    """The ranges that were written, in the order of seqs, and the partitions that had the batch.

    ``more``: a part of the batch is not written yet, and the client has to ask again.
    """

    written: tuple[VersionRange, ...]
    skipped: tuple[int, ...]
    more: bool


def published_from_json(value: dict[str, Any]) -> PublishAnswer:
    """Reads the result of ``published_to_json``. ProtocolError if it is not one."""
    try:
        ranges = tuple(VersionRange(int(p), bytes.fromhex(b), int(f), int(s)) for p, b, f, s in value["written"])
        return PublishAnswer(ranges, tuple(map(int, value["skipped"])), value.get("more") is True)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise ProtocolError(f"the answer to PUBLISH cannot be read: {error!r}") from None


class SinksTold(NamedTuple):
    """For replicas: the last batches of a partition's sinks at ``seq``, the end of the next snapshot.

    ``value`` is the result of the server's ``last_batches.to_json``.
    """

    partition: int
    seq: int
    value: dict[str, Any]

    def encode(self, id: int) -> bytes:
        return encode_json(Opcode.SINKS, self._asdict(), id)

    @classmethod
    def decode(cls, body: memoryview) -> SinksTold:
        what = "SINKS"
        value = decode_json(body, what)
        return cls(
            seq_field(value, "partition", what), seq_field(value, "seq", what), field(value, "value", dict, what)
        )
