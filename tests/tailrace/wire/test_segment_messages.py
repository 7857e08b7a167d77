"""The messages that copy segments: what they carry, and what is refused."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.bounds import request_bound
from tailrace.wire.file_parts import PART_BYTES_MAX
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import (
    DAMAGED_MAX,
    CheckpointFile,
    CheckpointRequest,
    PartitionCheckpoint,
    SegmentFetch,
    SegmentRelease,
    data_header,
)

FEED = bytes(range(16))
LOG = FailoverLog([(b"u" * 16, 1, 0)])


def file_of(number, first_seq, last_seq, nbytes=100):
    return CheckpointFile(bytes([number]) * 16, nbytes, bytes(16), first_seq, last_seq)


def checkpoint_of(*segments, seq=None, **members):
    seq = seq if seq is not None else segments[-1].last_seq if segments else 0
    usual = PartitionCheckpoint(bytes(16), 60.0, FEED, 3, seq, 0, 0, LOG, segments)
    return usual._replace(**members)


def decoded(frame):
    [found] = FrameDecoder().receive_data(frame)
    return found


@pytest.mark.parametrize(
    "request_",
    [
        CheckpointRequest(FEED, 3),
        CheckpointRequest(FEED, 0, Level.QUORUM, flush=True, state=True, leader=True, asker=b"a" * 16),
    ],
)
def test_a_request_for_a_checkpoint(request_):
    frame = decoded(encode_json(Opcode.SEGMENT_CHECKPOINT, request_.to_json()))
    assert CheckpointRequest.decode(frame.body) == request_


@pytest.mark.parametrize(
    "changed",
    [{"level": "memory"}, {"level": "all"}, {"partition": -1}, {"partition": True}, {"feed_id": "00"}, {"flush": 1}],
)
def test_a_request_that_cannot_be_meant(changed):
    value = CheckpointRequest(FEED, 3).to_json() | changed
    with pytest.raises(ProtocolError, match="SEGMENT_CHECKPOINT"):
        CheckpointRequest.decode(decoded(encode_json(Opcode.SEGMENT_CHECKPOINT, value)).body)


def through_json(checkpoint):
    return PartitionCheckpoint.from_json(
        decode_json(decoded(encode_json(Opcode.RESULT, checkpoint.to_json())).body, "RESULT")
    )


@given(st.lists(st.integers(1, 50), max_size=5), st.booleans())
def test_a_checkpoint(lengths, with_state):
    segments, end = [], 0
    for number, length in enumerate(lengths):
        segments.append(file_of(number, end + 1, end + length))
        end += length
    checkpoint = checkpoint_of(*segments)
    if with_state:
        checkpoint = checkpoint._replace(producers={"entries": []}, sinks={"job": [1, "job", 2]})
    assert through_json(checkpoint) == checkpoint


def test_a_history_whose_beginning_was_trimmed():
    assert through_json(checkpoint_of(file_of(1, 51, 60), trim_seq=50)).segments[0].first_seq == 51
    assert through_json(checkpoint_of(seq=60, trim_seq=60)).seq == 60


@pytest.mark.parametrize(
    ("checkpoint", "match"),
    [
        (checkpoint_of(file_of(1, 1, 5), file_of(2, 7, 9)), "begins at 7, not 6"),
        (checkpoint_of(file_of(1, 1, 5), file_of(2, 5, 9)), "begins at 5, not 6"),
        (checkpoint_of(file_of(1, 2, 5)), "the rows up to 1 are missing"),
        (checkpoint_of(file_of(1, 1, 5), seq=6), "end at 5, the checkpoint at 6"),
        (checkpoint_of(seq=6), "the rows up to 6 are missing"),
        (checkpoint_of(file_of(1, 1, 5), file_of(1, 6, 9)), "twice"),
        (checkpoint_of(file_of(1, 1, 5), log=FailoverLog()), "no branch"),
        (checkpoint_of(file_of(1, 1, 5, nbytes=0)), "contradicts itself"),
        (checkpoint_of(file_of(1, 6, 5)), "contradicts itself"),
    ],
)
def test_a_chain_that_is_none(checkpoint, match):
    with pytest.raises(ProtocolError, match=match):
        through_json(checkpoint)


@pytest.mark.parametrize("id_", ["../../etc/passwd", "a/b", "", "zz" * 16, 7, None])
def test_a_path_can_not_be_an_id(id_):
    value = checkpoint_of(file_of(1, 1, 5)).to_json()
    value["segments"][0]["id"] = id_
    with pytest.raises(ProtocolError, match="'id'"):
        PartitionCheckpoint.from_json(value)


def test_a_fetch_and_its_answer():
    fetch = SegmentFetch(b"c" * 16, b"s" * 16, 2**40, PART_BYTES_MAX)
    frame = decoded(fetch.encode(7))
    assert (SegmentFetch.decode(frame.body), frame.id) == (fetch, 7)
    short = fetch._replace(nbytes=3)
    assert bytes(short.decode_answer(decoded(data_header(3, 7) + b"abc"))) == b"abc"
    with pytest.raises(ProtocolError, match="4 bytes, and 3 were asked for"):
        short.decode_answer(decoded(data_header(4, 7) + b"abcd"))
    with pytest.raises(ProtocolError, match="is RESULT"):
        short.decode_answer(decoded(encode_json(Opcode.RESULT, {}, 7)))


@pytest.mark.parametrize("nbytes", [0, PART_BYTES_MAX + 1])
def test_a_part_of_a_wrong_size(nbytes):
    with pytest.raises(ProtocolError, match="a part has 1 to"):
        SegmentFetch.decode(decoded(SegmentFetch(b"c" * 16, b"s" * 16, 0, nbytes).encode(1)).body)


def test_a_release():
    frame = decoded(encode_json(Opcode.SEGMENT_RELEASE, {"checkpoint": "63" * 16}))
    assert SegmentRelease.decode(frame.body) == SegmentRelease(b"c" * 16)
    damaged = SegmentRelease(b"c" * 16, (b"s" * 16, b"t" * 16))
    assert SegmentRelease.decode(json.dumps(damaged.to_json()).encode()) == damaged
    with pytest.raises(ProtocolError, match="'checkpoint'"):
        SegmentRelease.decode(b"{}")


def test_a_release_reports_a_bounded_number_of_segments():
    ids = tuple(bytes([number]) * 16 for number in range(DAMAGED_MAX + 1))
    told = SegmentRelease(b"c" * 16, ids).to_json()
    assert len(told["damaged"]) == DAMAGED_MAX
    assert len(json.dumps(told)) < request_bound(Opcode.SEGMENT_RELEASE)
    with pytest.raises(ProtocolError, match=f"at most {DAMAGED_MAX} are accepted"):
        SegmentRelease.decode(json.dumps(told | {"damaged": [id.hex() for id in ids]}).encode())


@pytest.mark.parametrize("damaged", ["", [1], ["63" * 15], [None], {}, [[]]])
def test_a_report_of_damage_that_names_no_segments(damaged):
    with pytest.raises(ProtocolError, match="'damaged'"):
        SegmentRelease.decode(json.dumps({"checkpoint": "63" * 16, "damaged": damaged}).encode())


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(data):
    for decode in (CheckpointRequest.decode, SegmentFetch.decode, SegmentRelease.decode):
        with contextlib.suppress(ProtocolError):
            decode(data)
