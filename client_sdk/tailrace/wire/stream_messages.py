"""The messages of streams: requests, answers, ends, markers. Pure.

Layouts: docs/protocol/messages.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.model import EndReason, Level
from tailrace.model.failover import SEQ_MAX, FailoverLog
from tailrace.wire.bodies import (
    decode_json,
    encode_json,
    field,
    hex_field,
    log_field,
    seq_field,
    told_log_field,
    unpack,
)
from tailrace.wire.filters import EVERYTHING, StreamFilter
from tailrace.wire.frames import FRAME_HEADER_BYTES, frame_header
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica

COOKIE_BYTES_MAX = 64


class StreamRequest(NamedTuple):
    """A request for a partition from a position on (docs/protocol/streams.md).

    ``seq`` None: from now on, or from the first mutation with a timestamp of ``since_us`` or later (microseconds since
    1970 UTC). The stream ends before the first mutation with a timestamp of ``until_us`` or later.
    """

    feed_id: bytes
    partition: int
    log: FailoverLog
    seq: int | None
    snapshot_first: int
    snapshot_last: int
    purge_seq: int | None
    end_seq: int | None
    level: Level
    state: str = "leader"
    filter: StreamFilter = EVERYTHING
    since_us: int | None = None
    until_us: int | None = None
    replica: Replica | None = None

    def encode(self, id: int) -> bytes:
        return encode_json(Opcode.STREAM_REQUEST, self.to_json(), id)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "feed_id": self.feed_id.hex(),
            "partition": self.partition,
            "log": self.log.to_json(),
            "seq": self.seq,
            "snapshot_first": self.snapshot_first,
            "snapshot_last": self.snapshot_last,
            "purge_seq": self.purge_seq,
            "end_seq": self.end_seq,
            "level": self.level.name.lower(),
            "state": self.state,
        }
        if self.filter != EVERYTHING:
            value["filter"] = self.filter.to_json()
        if self.since_us is not None:
            value["since_us"] = self.since_us
        if self.until_us is not None:
            value["until_us"] = self.until_us
        if self.replica is not None:
            value["replica"] = self.replica.to_json()
        return value

    @classmethod
    def decode(cls, body: memoryview) -> StreamRequest:
        what = "STREAM_REQUEST"
        value = decode_json(body, what)
        try:
            level = Level.parse(field(value, "level", str, what))
        except ValueError as error:
            raise ProtocolError(f"{what}: {error}") from None
        state = field(value, "state", str, what)
        if state not in ("leader", "follower"):
            raise ProtocolError(f"{what}: field 'state' is {state!r:.60}, but has to be 'leader' or 'follower'")
        request = cls(
            hex_field(value, "feed_id", 16, what),
            seq_field(value, "partition", what),
            log_field(value, what),
            seq_field(value, "seq", what, None),
            seq_field(value, "snapshot_first", what),
            seq_field(value, "snapshot_last", what),
            seq_field(value, "purge_seq", what, None),
            seq_field(value, "end_seq", what, None),
            level,
            state,
            StreamFilter.from_json(value.get("filter"), what),
            seq_field(value, "since_us", what, None),
            seq_field(value, "until_us", what, None),
            Replica.from_json(value.get("replica"), what),
        )
        if request.seq is not None and not request.snapshot_first <= request.seq <= request.snapshot_last:
            raise ProtocolError(f"{what}: seq {request.seq} lies outside of its snapshot")
        if request.seq is not None and request.since_us is not None:
            raise ProtocolError(f"{what}: field 'since_us' is for a request without a seq, this one has {request.seq}")
        return request


class StreamOk(NamedTuple):
    """The stream begins at ``seq``; ``log`` is the partition's failover log.

    If the stream begins at a time, ``snapshot`` holds the first and last seq of the run that has ``seq``.
    """

    partition: int
    seq: int
    log: FailoverLog
    high_seq: int
    snapshot: tuple[int, int] | None = None

    def encode(self, id: int) -> bytes:
        value = {**self._asdict(), "log": self.log.to_json()}
        del value["snapshot"]
        if self.snapshot is not None:
            value["snapshot_first"], value["snapshot_last"] = self.snapshot
        return encode_json(Opcode.STREAM_OK, value, id)

    @classmethod
    def decode(cls, body: memoryview) -> StreamOk:
        what = "STREAM_OK"
        value = decode_json(body, what)
        seq = seq_field(value, "seq", what)
        first, last = seq_field(value, "snapshot_first", what, None), seq_field(value, "snapshot_last", what, None)
        snapshot = None if first is None or last is None else (first, last)
        if snapshot is not None and not first <= seq <= last:
            raise ProtocolError(f"{what}: seq {seq} lies outside of its snapshot")
        return cls(
            seq_field(value, "partition", what),
            seq,
            told_log_field(value, what),
            seq_field(value, "high_seq", what),
            snapshot,
        )


class RollBack(NamedTuple):
    """The stream cannot begin at the requested seq: the consumer has to go back to ``seq``, and ask again."""

    partition: int
    seq: int
    log: FailoverLog
    why: str

    def encode(self, id: int) -> bytes:
        return encode_json(Opcode.ROLLBACK, {**self._asdict(), "log": self.log.to_json()}, id)

    @classmethod
    def decode(cls, body: memoryview) -> RollBack:
        what = "ROLLBACK"
        value = decode_json(body, what)
        return cls(
            seq_field(value, "partition", what),
            seq_field(value, "seq", what),
            told_log_field(value, what),
            field(value, "why", str, what, ""),
        )


class StreamEnd(NamedTuple):
    """The stream of a partition has ended. ``first_seq`` is the oldest seq that is kept, for the reason "trimmed"."""

    partition: int
    reason: EndReason
    message: str
    term: int = 0
    first_seq: int = 0

    def encode(self, id: int) -> bytes:
        value = {**self._asdict(), "reason": self.reason.value}
        if not self.first_seq:
            del value["first_seq"]
        return encode_json(Opcode.STREAM_END, value, id)

    @classmethod
    def decode(cls, body: memoryview) -> StreamEnd:
        what = "STREAM_END"
        value = decode_json(body, what)
        try:
            reason = EndReason(field(value, "reason", str, what))
        except ValueError:
            reason = (
                EndReason.ERROR
            )  # of a newer server: the stream is asked for again, as after every end that is not final
        return cls(
            seq_field(value, "partition", what),
            reason,
            field(value, "message", str, what, ""),
            seq_field(value, "term", what, 0),
            seq_field(value, "first_seq", what, 0),
        )


class ResumeAnswer(NamedTuple):
    """The RESULT of an EXPLAIN_RESUME: the node's answer to that STREAM_REQUEST, and the facts of its decision.

    An empty log and zeros mean that the node does not have the partition.
    """

    answer: StreamOk | RollBack | StreamEnd
    log: FailoverLog = FailoverLog()
    high_seq: int = 0
    visible_seq: int = 0
    purge_seq: int = 0
    trim_seq: int = 0

    def to_json(self) -> dict[str, Any]:
        answer = self.answer
        frame = answer.encode(0)
        return {
            **self._asdict(),
            "opcode": Opcode(frame[4]).name,
            "answer": json.loads(frame[FRAME_HEADER_BYTES:]),
            "log": self.log.to_json(),
        }

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> ResumeAnswer:
        what = "RESULT"
        kinds: dict[str, type[StreamOk | RollBack | StreamEnd]] = {
            "STREAM_OK": StreamOk,
            "ROLLBACK": RollBack,
            "STREAM_END": StreamEnd,
        }
        opcode = field(value, "opcode", str, what)
        if opcode not in kinds:
            raise ProtocolError(f"{what}: field 'opcode' is {opcode!r}, none of {', '.join(kinds)}")
        body = json.dumps(field(value, "answer", dict, what)).encode()
        seqs = (seq_field(value, name, what) for name in ("high_seq", "visible_seq", "purge_seq", "trim_seq"))
        return cls(kinds[opcode].decode(memoryview(body)), log_field(value, what), *seqs)


_SNAPSHOT_START = struct.Struct("<II16sQQQ")
_SEQ = struct.Struct("<I4xQ")
_U64 = struct.Struct("<Q")


class SnapshotStartMessage(NamedTuple):
    """The mutations after ``after_seq`` up to ``last_seq`` follow. ``complete``: no superseded row is left out.

    ``published``, for replicas: the replica has to apply the snapshot in one step, together with the next SINKS.
    """

    partition: int
    complete: bool
    branch: bytes
    after_seq: int
    last_seq: int
    purge_seq: int
    published: bool = False

    def encode(self, id: int) -> bytes:
        partition, complete, *rest, published = self
        body = _SNAPSHOT_START.pack(partition, complete | published << 1, *rest)
        return frame_header(Opcode.SNAPSHOT_START, _SNAPSHOT_START.size, id) + body

    @classmethod
    def decode(cls, body: memoryview) -> SnapshotStartMessage:
        partition, flags, *rest = unpack(_SNAPSHOT_START, body, "SNAPSHOT_START")
        if rest[1] > SEQ_MAX or rest[2] > SEQ_MAX or rest[3] > SEQ_MAX:
            raise ProtocolError(f"SNAPSHOT_START of partition {partition}: a seq of {rest[1:]} is above {SEQ_MAX}")
        return tuple.__new__(cls, (partition, flags & 1 == 1, *rest, flags & 2 == 2))


def encode_seq(opcode: Opcode, partition: int, seq: int, id: int) -> bytes:
    """Returns a SNAPSHOT_END or SEQ_ADVANCED frame."""
    return frame_header(opcode, _SEQ.size, id) + _SEQ.pack(partition, seq)


def decode_seq(body: memoryview, what: str) -> tuple[int, int]:
    """Returns (partition, seq) of a SNAPSHOT_END or SEQ_ADVANCED."""
    partition, seq = unpack(_SEQ, body, what)
    if seq > SEQ_MAX:
        raise ProtocolError(f"{what} of partition {partition}: seq {seq} is above {SEQ_MAX}")
    return partition, seq


def encode_number(opcode: Opcode, number: int, id: int = 0) -> bytes:
    """Returns a frame with one number: that of a ROUND_COMPLETE, or the consumed bytes of a CREDIT.

    ``id``: of the stream that a CREDIT is about; 0: the connection.
    """
    return frame_header(opcode, _U64.size, id) + _U64.pack(number)


def decode_number(body: memoryview, what: str) -> int:
    """Returns the number of a ROUND_COMPLETE or CREDIT."""
    (number,) = unpack(_U64, body, what)
    return int(number)


def decode_cookie(body: memoryview, what: str) -> bytes:
    """Returns the cookie of a barrier, 1 to 64 bytes."""
    if not 1 <= len(body) <= COOKIE_BYTES_MAX:
        raise ProtocolError(f"{what}: a cookie of {len(body)} bytes; 1 to {COOKIE_BYTES_MAX} are accepted")
    return bytes(body)
