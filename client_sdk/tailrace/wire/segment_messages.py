"""The messages that copy the segments of a partition as files. Pure. Layouts: docs/protocol/messages.

SEGMENT_CHECKPOINT ──> RESULT         the chain of a partition; the node keeps its files for a while
SEGMENT_FETCH      ──> SEGMENT_DATA   a part of one of these files; renews the checkpoint
SEGMENT_RELEASE    ──> RESULT         the files are no longer needed
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tailrace.block.header import PARTITION_MAX
from tailrace.errors import ProtocolError
from tailrace.model import FEED_ID_BYTES, Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import decode_json, field, hex_field, log_field, seconds_field, seq_field, unpack
from tailrace.wire.file_parts import check_part
from tailrace.wire.frames import Frame, frame_header
from tailrace.wire.opcodes import Opcode

CHECKPOINT_ID_BYTES = 16
ASKER_BYTES = 16
SEGMENT_ID_BYTES = 16
CHECKSUM_BYTES = 16
# The segments of one partition, as in its manifest.
SEGMENTS_MAX = 10_000
# The segments that one SEGMENT_RELEASE reports as damaged. A fetch ends at the first one.
DAMAGED_MAX = 16

_FETCH = struct.Struct("<16s16sQI4x")
# Rows that a node may still lose are in no segment.
_LEVELS = (Level.DISK, Level.QUORUM)
_FILE_BYTES_MAX = 2**63 - 1


class CheckpointRequest(NamedTuple):
    """Asks for the checkpoint of a partition at ``level``, DISK or QUORUM.

    With ``flush`` the node first moves its stable rows to a segment. With ``state`` the answer has the
    producers and sinks, which a replica needs. With ``leader`` only a node answers that leads until it answers.
    ``asker`` (16 bytes) names the copy that is made, b"" for none: a copy keeps one checkpoint of a partition, so the
    answer replaces an earlier one that was lost.
    """

    feed_id: bytes
    partition: int
    level: Level = Level.DISK
    flush: bool = False
    state: bool = False
    leader: bool = False
    asker: bytes = b""

    def to_json(self) -> dict[str, Any]:
        """Returns the body of a SEGMENT_CHECKPOINT."""
        value = {**self._asdict(), "feed_id": self.feed_id.hex(), "level": self.level.name.lower()}
        del value["asker"]
        return value | {"asker": self.asker.hex()} if self.asker else value

    @classmethod
    def decode(cls, body: bytes | memoryview) -> CheckpointRequest:
        what = "SEGMENT_CHECKPOINT"
        value = decode_json(body, what)
        text = field(value, "level", str, what, "disk")
        level = next((level for level in _LEVELS if level.name.lower() == text), None)
        if level is None:
            raise ProtocolError(f"{what}: field 'level' is {text!r:.60}; segments have level disk or quorum")
        return cls(
            hex_field(value, "feed_id", FEED_ID_BYTES, what),
            _partition_field(value, what),
            level,
            field(value, "flush", bool, what, False),
            field(value, "state", bool, what, False),
            field(value, "leader", bool, what, False),
            hex_field(value, "asker", ASKER_BYTES, what) if "asker" in value else b"",
        )


class CheckpointFile(NamedTuple):
    """A segment of a checkpoint: its id (16 bytes), the size of its file, and the seqs that it covers.

    ``checksum`` (16 bytes) is the XXH3-128 that the file's trailer has, highest byte first: of all bytes before it.
    """

    id: bytes
    nbytes: int
    checksum: bytes
    first_seq: int
    last_seq: int

    def to_json(self) -> dict[str, Any]:
        """Returns a member of the list ``segments``."""
        seqs = {"first_seq": self.first_seq, "last_seq": self.last_seq}
        return {"id": self.id.hex(), "bytes": self.nbytes, "checksum": self.checksum.hex(), **seqs}

    @classmethod
    def from_json(cls, value: Any, what: str) -> CheckpointFile:
        """Reads the result of ``to_json``. Raises ProtocolError."""
        if not isinstance(value, dict):
            raise ProtocolError(f"{what}: a segment is {value!r:.60}, not an object")
        found = cls(
            hex_field(value, "id", SEGMENT_ID_BYTES, what),
            field(value, "bytes", int, what),
            hex_field(value, "checksum", CHECKSUM_BYTES, what),
            seq_field(value, "first_seq", what),
            seq_field(value, "last_seq", what),
        )
        if not 0 < found.nbytes <= _FILE_BYTES_MAX or not 0 < found.first_seq <= found.last_seq:
            raise ProtocolError(f"{what}: segment {found.id.hex()} contradicts itself: {value!r:.200}")
        return found


class PartitionCheckpoint(NamedTuple):
    """A partition as of ``seq``: everything up to there is in ``segments``, oldest first.

    ``id`` (16 bytes) names the files that the node keeps, for ``kept_s`` seconds after the last fetch. Rows at or below
    ``purge_seq`` may be missing though no newer row of their key is there. Rows at or below ``trim_seq`` were dropped
    by age. ``producers`` and ``sinks`` are those of the partition's manifest as of ``seq``, if they were asked for.
    """

    id: bytes
    kept_s: float
    feed_id: bytes
    partition: int
    seq: int
    purge_seq: int
    trim_seq: int
    log: FailoverLog
    segments: tuple[CheckpointFile, ...]
    producers: dict[str, Any] | None = None
    sinks: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the body of the RESULT."""
        value = {
            "checkpoint": self.id.hex(),
            "kept_s": self.kept_s,
            "feed_id": self.feed_id.hex(),
            "partition": self.partition,
            "term": self.log.term,
            "seq": self.seq,
            "purge_seq": self.purge_seq,
            "trim_seq": self.trim_seq,
            "log": self.log.to_json(),
            "segments": [segment.to_json() for segment in self.segments],
        }
        return value if self.producers is None else {**value, "producers": self.producers, "sinks": self.sinks}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PartitionCheckpoint:
        """Reads the result of ``to_json``. Raises ProtocolError, also for a chain with a gap."""
        what = "the answer to a SEGMENT_CHECKPOINT"
        segments = field(value, "segments", list, what)
        if len(segments) > SEGMENTS_MAX:
            raise ProtocolError(f"{what}: {len(segments)} segments; at most {SEGMENTS_MAX} are accepted")
        found = cls(
            hex_field(value, "checkpoint", CHECKPOINT_ID_BYTES, what),
            seconds_field(value, "kept_s", what),
            hex_field(value, "feed_id", FEED_ID_BYTES, what),
            _partition_field(value, what),
            seq_field(value, "seq", what),
            seq_field(value, "purge_seq", what),
            seq_field(value, "trim_seq", what),
            log_field(value, what),
            tuple(CheckpointFile.from_json(segment, what) for segment in segments),
            field(value, "producers", dict, what, None),
            field(value, "sinks", dict, what, None),
        )
        found._check_chain(what)
        return found

    def _check_chain(self, what: str) -> None:
        """Raises ProtocolError unless the segments cover everything from the trim seq to ``seq``, each id once."""
        begin = self.segments[0].first_seq - 1 if self.segments else self.seq
        if begin > self.trim_seq:
            raise ProtocolError(f"{what}: the rows up to {begin} are missing, and only those up to {self.trim_seq} may")
        end = begin
        for segment in self.segments:
            if segment.first_seq != end + 1:
                raise ProtocolError(f"{what}: segment {segment.id.hex()} begins at {segment.first_seq}, not {end + 1}")
            end = segment.last_seq
        if end != self.seq:
            raise ProtocolError(f"{what}: the segments end at {end}, the checkpoint at {self.seq}")
        if len({segment.id for segment in self.segments}) != len(self.segments):
            raise ProtocolError(f"{what}: a segment is there twice")
        if self.seq and not self.log:
            raise ProtocolError(f"{what}: there are rows up to {self.seq}, and no branch of them")


class SegmentFetch(NamedTuple):
    """Asks for ``nbytes`` bytes of a segment's file from ``offset`` on. The segment belongs to the checkpoint."""

    checkpoint_id: bytes
    segment_id: bytes
    offset: int
    nbytes: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.SEGMENT_FETCH, _FETCH.size, id) + _FETCH.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> SegmentFetch:
        found = cls(*unpack(_FETCH, body, "SEGMENT_FETCH"))
        check_part(found.nbytes, "SEGMENT_FETCH")
        return found

    def decode_answer(self, frame: Frame) -> memoryview:
        """Returns the bytes in the answer. Raises ProtocolError for another frame, or another count of bytes."""
        if frame.opcode is not Opcode.SEGMENT_DATA:
            raise ProtocolError(f"the answer to a SEGMENT_FETCH is {frame.opcode.name}")
        if len(frame.body) != self.nbytes:
            raise ProtocolError(f"SEGMENT_DATA: {len(frame.body)} bytes, and {self.nbytes} were asked for")
        return frame.body


def data_header(nbytes: int, id: int) -> bytes:
    """Returns the header of a SEGMENT_DATA, whose body is ``nbytes`` bytes of a file."""
    return frame_header(Opcode.SEGMENT_DATA, nbytes, id)


class SegmentRelease(NamedTuple):
    """Tells that the files of a checkpoint are no longer needed.

    ``damaged`` are the ids of its segments (16 bytes) whose bytes were wrong each time that they came. The node checks
    these files. At most DAMAGED_MAX are told.
    """

    checkpoint_id: bytes
    damaged: tuple[bytes, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the body of a SEGMENT_RELEASE."""
        value: dict[str, Any] = {"checkpoint": self.checkpoint_id.hex()}
        if self.damaged:
            value["damaged"] = [segment_id.hex() for segment_id in self.damaged[:DAMAGED_MAX]]
        return value

    @classmethod
    def decode(cls, body: bytes | memoryview) -> SegmentRelease:
        what = "SEGMENT_RELEASE"
        value = decode_json(body, what)
        damaged = field(value, "damaged", list, what, [])
        if len(damaged) > DAMAGED_MAX:
            raise ProtocolError(f"{what}: {len(damaged)} damaged segments; at most {DAMAGED_MAX} are accepted")
        return cls(
            hex_field(value, "checkpoint", CHECKPOINT_ID_BYTES, what),
            tuple(hex_field({"damaged": id}, "damaged", SEGMENT_ID_BYTES, what) for id in damaged),
        )


def _partition_field(value: dict[str, Any], what: str) -> int:
    found: int = field(value, "partition", int, what)
    if not 0 <= found <= PARTITION_MAX:
        raise ProtocolError(f"{what}: field 'partition' is {found!r:.60}, not a partition")
    return found
