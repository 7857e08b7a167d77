"""The messages that push segments: what they carry, and what is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError
from tailrace.segment.identity import INCLUDED_IDS_MAX
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.bounds import request_bound
from tailrace.wire.file_parts import PART_BYTES_MAX
from tailrace.wire.frames import FRAME_HEADER_BYTES, FrameDecoder
from tailrace.wire.opcodes import Opcode
from tailrace.wire.push_messages import (
    MESSAGE_CHARS_MAX,
    OFFER_BYTES_MAX,
    DeclineReason,
    SegmentAccept,
    SegmentAck,
    SegmentDecline,
    SegmentOffered,
    SegmentTransit,
    transit_header,
)

SEQ_MAX = 2**63 - 1
OFFER = SegmentOffered(
    partition=3,
    number=7,
    term=2,
    placement_id=b"p" * 16,
    id=b"s" * 16,
    base_id=bytes(16),
    included_ids=(b"a" * 16, b"b" * 16),
    is_major=True,
    branch=b"u" * 16,
    after_seq=0,
    last_seq=42,
    purge_seq=40,
    trim_seq=0,
    nbytes=5_000,
    checksum=b"c" * 16,
)


def decoded(frame):
    [found] = FrameDecoder().receive_data(frame)
    return found


def test_an_offer():
    frame = decoded(OFFER.encode(4))
    assert (frame.opcode, frame.id) == (Opcode.SEGMENT_OFFER, 4)
    assert SegmentOffered.decode(frame.body) == OFFER


def test_the_longest_offer_has_room():
    ids = tuple(bytes([number]) * 16 for number in range(INCLUDED_IDS_MAX))
    longest = OFFER._replace(
        partition=2**31 - 1,
        number=SEQ_MAX,
        term=SEQ_MAX,
        after_seq=SEQ_MAX - 1,
        last_seq=SEQ_MAX,
        purge_seq=SEQ_MAX,
        trim_seq=SEQ_MAX,
        nbytes=2**63 - 1,
        included_ids=ids,
    )
    assert len(longest.encode(4)) - FRAME_HEADER_BYTES <= OFFER_BYTES_MAX


@pytest.mark.parametrize(
    "changed",
    [
        {"after_seq": 42},
        {"purge_seq": 43},
        {"nbytes": 0},
        {"nbytes": -1},
        {"nbytes": 2**63},
        {"partition": 2**32},
        {"id": "00"},
        {"checksum": 7},
        {"included_ids": ["61" * 16] * (INCLUDED_IDS_MAX + 1)},
        {"included_ids": ["../../etc"]},
        {"included_ids": "61" * 16},
        {"last_seq": -1},
        {"is_major": 1},
    ],
)
def test_an_offer_that_cannot_be_meant(changed):
    value = decode_json(decoded(OFFER.encode(4)).body, "SEGMENT_OFFER") | changed
    with pytest.raises(ProtocolError, match="SEGMENT_OFFER"):
        SegmentOffered.decode(decoded(encode_json(Opcode.SEGMENT_OFFER, value)).body)


def test_an_offer_that_is_too_long_is_not_read():
    with pytest.raises(ProtocolError, match="at most"):
        SegmentOffered.decode(b" " * (OFFER_BYTES_MAX + 1))


def test_parts_and_their_acknowledgements():
    frame = decoded(transit_header(7, 1_000, 3, 4) + b"abc")
    part = SegmentTransit.decode(3, memoryview(frame.body))
    assert (part.partition, part.number, part.offset, bytes(part.data)) == (3, 7, 1_000, b"abc")
    for answer in (SegmentAccept(7, 1_000), SegmentAck(7, 1_003)):
        assert type(answer).decode(decoded(answer.encode(4)).body) == answer


@pytest.mark.parametrize("nbytes", [0, PART_BYTES_MAX + 1])
def test_a_part_of_a_wrong_size(nbytes):
    frame = decoded(transit_header(7, 0, nbytes, 4) + bytes(nbytes))
    with pytest.raises(ProtocolError, match="SEGMENT_TRANSIT"):
        SegmentTransit.decode(3, memoryview(frame.body))


@pytest.mark.parametrize("reason", DeclineReason)
def test_a_decline_has_room_whatever_its_message_is(reason):
    decline = SegmentDecline(SEQ_MAX, reason, "\U0001f600" * 10_000)
    frame = decoded(decline.encode(4))
    assert len(frame.body) <= request_bound(Opcode.SEGMENT_DECLINE)
    assert SegmentDecline.decode(frame.body) == decline._replace(message="\U0001f600" * MESSAGE_CHARS_MAX)


def test_a_decline_for_an_unknown_reason():
    frame = decoded(encode_json(Opcode.SEGMENT_DECLINE, {"number": 1, "reason": "tired", "message": ""}))
    with pytest.raises(ProtocolError, match="'tired', not one of exists, overloaded"):
        SegmentDecline.decode(frame.body)


@given(st.sampled_from([SegmentOffered, SegmentAccept, SegmentAck, SegmentDecline]), st.binary(max_size=100))
def test_other_bytes_are_a_breach_of_the_protocol(message, body):
    with contextlib.suppress(ProtocolError):
        message.decode(body)
