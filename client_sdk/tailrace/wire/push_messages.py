"""The messages by which a leader pushes segments to a follower. Pure. Layouts: docs/protocol/messages.

    leader                                  follower
    SEGMENT_OFFER                     ──>
                                      <──   SEGMENT_DECLINE, or SEGMENT_ACCEPT from an offset on
    SEGMENT_TRANSIT ...               ──>
                                      <──   SEGMENT_ACK of the parts so far; of all: it is installed

All of them carry the id of the partition's replica stream, and the number of the offer.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, NamedTuple

from tailrace.block.header import PARTITION_MAX
from tailrace.errors import ProtocolError
from tailrace.model import BRANCH_BYTES
from tailrace.segment.identity import INCLUDED_IDS_MAX
from tailrace.wire.bodies import decode_json, encode_json, field, hex_field, seq_field, text_fields, unpack
from tailrace.wire.file_parts import check_part
from tailrace.wire.frames import frame_header
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import CHECKSUM_BYTES, SEGMENT_ID_BYTES

# 64 included ids in hex take 2,240 bytes, and all else below 1,000.
OFFER_BYTES_MAX = 8 * 1024
# Each character takes at most 12 bytes of JSON, and an answer has 4,096.
MESSAGE_CHARS_MAX = 300

_PLACEMENT_BYTES = 16
_FILE_BYTES_MAX = 2**63 - 1
_PLACE = struct.Struct("<QQ")


class DeclineReason(enum.StrEnum):
    """Why a follower does not take a segment; docs/internals/chain.md has the table."""

    EXISTS = "exists"
    OVERLOADED = "overloaded"
    INVALID = "invalid"
    INFLIGHT = "inflight"
    OUT_OF_ORDER = "out_of_order"


class SegmentOffered(NamedTuple):
    """The offer ``number`` of the leader of ``term``: a segment of ``partition`` with ``nbytes`` bytes.

    ``placement_id`` (16 bytes) is that of the leader's data directory. ``checksum`` is the file's XXH3-128, highest
    byte first. The others are those of the segment's link in the leader's chain; ids and ``branch`` have 16 bytes.
    ``trim_seq``: rows at or below it were dropped by age.
    """

    partition: int
    number: int
    term: int
    placement_id: bytes
    id: bytes
    base_id: bytes
    included_ids: tuple[bytes, ...]
    is_major: bool
    branch: bytes
    after_seq: int
    last_seq: int
    purge_seq: int
    trim_seq: int
    nbytes: int
    checksum: bytes

    def encode(self, id: int) -> bytes:
        value = self._asdict()
        for name in ("placement_id", "id", "base_id", "branch", "checksum"):
            value[name] = value[name].hex()
        value["included_ids"] = [one.hex() for one in self.included_ids]
        return encode_json(Opcode.SEGMENT_OFFER, value, id)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> SegmentOffered:
        what = "SEGMENT_OFFER"
        if len(body) > OFFER_BYTES_MAX:
            raise ProtocolError(f"{what}: {len(body)} bytes; at most {OFFER_BYTES_MAX} are accepted")
        value = decode_json(body, what)
        found = cls(
            seq_field(value, "partition", what),
            seq_field(value, "number", what),
            seq_field(value, "term", what),
            hex_field(value, "placement_id", _PLACEMENT_BYTES, what),
            hex_field(value, "id", SEGMENT_ID_BYTES, what),
            hex_field(value, "base_id", SEGMENT_ID_BYTES, what),
            _ids_field(value, what),
            field(value, "is_major", bool, what),
            hex_field(value, "branch", BRANCH_BYTES, what),
            seq_field(value, "after_seq", what),
            seq_field(value, "last_seq", what),
            seq_field(value, "purge_seq", what),
            seq_field(value, "trim_seq", what),
            field(value, "nbytes", int, what),
            hex_field(value, "checksum", CHECKSUM_BYTES, what),
        )
        consistent = found.after_seq < found.last_seq and found.purge_seq <= found.last_seq
        if not consistent or not 0 < found.nbytes <= _FILE_BYTES_MAX or found.partition > PARTITION_MAX:
            raise ProtocolError(f"{what}: segment {found.id.hex()} contradicts itself: {value!r:.300}")
        return found


class SegmentTransit(NamedTuple):
    """A part of the file of the offer ``number``, from ``offset`` on."""

    partition: int
    number: int
    offset: int
    data: memoryview

    @classmethod
    def decode(cls, partition: int, body: memoryview) -> SegmentTransit:
        what = "SEGMENT_TRANSIT"
        number, offset = unpack(_PLACE, body, what)
        data = body[_PLACE.size :]
        check_part(len(data), what)
        return cls(partition, number, offset, data)


def transit_header(number: int, offset: int, nbytes: int, id: int) -> bytes:
    """Returns the bytes of a SEGMENT_TRANSIT before its ``nbytes`` bytes of the file."""
    return frame_header(Opcode.SEGMENT_TRANSIT, _PLACE.size + nbytes, id) + _PLACE.pack(number, offset)


class SegmentAccept(NamedTuple):
    """The follower has the first ``offset`` bytes of the offer ``number``, and wants the others."""

    number: int
    offset: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.SEGMENT_ACCEPT, _PLACE.size, id) + _PLACE.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> SegmentAccept:
        return cls(*unpack(_PLACE, body, "SEGMENT_ACCEPT"))


class SegmentAck(NamedTuple):
    """The follower has the first ``offset`` bytes of the offer ``number``. With all bytes: it has installed them."""

    number: int
    offset: int

    def encode(self, id: int) -> bytes:
        return frame_header(Opcode.SEGMENT_ACK, _PLACE.size, id) + _PLACE.pack(*self)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> SegmentAck:
        return cls(*unpack(_PLACE, body, "SEGMENT_ACK"))


class SegmentDecline(NamedTuple):
    """The follower does not take the segment of the offer ``number``; ``message`` says why, for people."""

    number: int
    reason: DeclineReason
    message: str = ""

    def encode(self, id: int) -> bytes:
        value = {"number": self.number, "reason": self.reason.value, "message": self.message[:MESSAGE_CHARS_MAX]}
        return encode_json(Opcode.SEGMENT_DECLINE, value, id)

    @classmethod
    def decode(cls, body: bytes | memoryview) -> SegmentDecline:
        what = "SEGMENT_DECLINE"
        value = decode_json(body, what)
        text = field(value, "reason", str, what)
        reason = next((reason for reason in DeclineReason if reason.value == text), None)
        if reason is None:
            raise ProtocolError(f"{what}: field 'reason' is {text!r:.60}, not one of {', '.join(DeclineReason)}")
        return cls(seq_field(value, "number", what), reason, field(value, "message", str, what)[:MESSAGE_CHARS_MAX])


SegmentAnswer = SegmentAccept | SegmentAck | SegmentDecline


def _ids_field(value: dict[str, Any], what: str) -> tuple[bytes, ...]:
    texts = text_fields(value, "included_ids", what)
    if len(texts) > INCLUDED_IDS_MAX:
        raise ProtocolError(f"{what}: {len(texts)} included segments; at most {INCLUDED_IDS_MAX} are permitted")
    return tuple(hex_field({"included_ids": text}, "included_ids", SEGMENT_ID_BYTES, what) for text in texts)
