"""The messages that copy sealed stages: what is written is read, and what must not be is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError
from tailrace.wire.file_parts import PART_BYTES_MAX
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_copy_messages import (
    CopyAction,
    StageCopies,
    StageCopiesResult,
    StageData,
    StageFetch,
    stages_field,
)
from tailrace.wire.stage_messages import STAGES_MAX

IDS = st.binary(min_size=16, max_size=16)
COPIES = StageCopies(CopyAction.TAKE, b"c" * 16, b"f" * 16, (b"s" * 16,), "10.0.0.1:4700")
FETCH = StageFetch(b"f" * 16, b"s" * 16, 100, 10)


def frame_of(data):
    [frame] = FrameDecoder().receive_data(data)
    return frame


@given(st.sampled_from(CopyAction), IDS, IDS, st.lists(IDS, max_size=5), st.sampled_from(["", "h:1"]))
def test_stages_to_copy_are_read_as_they_were_written(action, cluster_id, feed_id, stages, address):
    copies = StageCopies(action, cluster_id, feed_id, tuple(stages), address)
    assert StageCopies.decode(json.dumps(copies.to_json()).encode()) == copies


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": "keep"}, "field 'action' is 'keep', not take, find or drop"),
        ({"action": 1}, "action"),
        ({"feed_id": "00"}, "feed_id"),
        ({"cluster_id": "zz"}, "cluster_id"),
        ({"stages": ["00"]}, "stages"),
        ({"stages": "00" * 16}, "stages"),
        ({"address": "h" * 1_000}, "address"),
    ],
)
def test_a_request_with_a_wrong_field_is_refused(change, message):
    with pytest.raises(ProtocolError, match=message):
        StageCopies.decode(json.dumps(COPIES.to_json() | change).encode())


@given(IDS, st.lists(IDS, max_size=5))
def test_the_answer_tells_the_disk_and_the_stages(placement_id, stages):
    result = StageCopiesResult(placement_id, tuple(stages))
    value = json.loads(json.dumps(result.to_json()))
    assert StageCopiesResult.from_json(value) == result
    del value["placement_id"]  # as an earlier version answers
    assert StageCopiesResult.from_json(value) == result._replace(placement_id=b"")


def test_too_many_stages_are_refused():
    with pytest.raises(ProtocolError, match=f"{STAGES_MAX + 1} stages; at most {STAGES_MAX}"):
        stages_field({"stages": ["00" * 16] * (STAGES_MAX + 1)}, "STAGE_COPIES")


@given(IDS, IDS, st.integers(0, 2**64 - 1), st.integers(1, PART_BYTES_MAX))
def test_a_fetch_is_read_as_it_was_written(feed_id, stage_id, offset, nbytes):
    fetch = StageFetch(feed_id, stage_id, offset, nbytes)
    frame = frame_of(fetch.encode(7))
    assert (frame.opcode, frame.id) == (Opcode.STAGE_FETCH, 7)
    assert StageFetch.decode(frame.body) == fetch


@pytest.mark.parametrize("nbytes", [0, PART_BYTES_MAX + 1])
def test_a_fetch_out_of_the_bounds_is_refused(nbytes):
    with pytest.raises(ProtocolError, match="a part has 1 to"):
        StageFetch.decode(frame_of(FETCH._replace(nbytes=nbytes).encode(7)).body)


@pytest.mark.parametrize(("file_bytes", "nbytes"), [(200, 10), (105, 5), (100, 0), (50, 0)])
def test_a_part_has_the_bytes_that_the_file_has_there(file_bytes, nbytes):
    data = StageData.decode(frame_of(StageData(file_bytes, b"x" * nbytes).encode(7)), FETCH)
    assert (data.file_bytes, bytes(data.data)) == (file_bytes, b"x" * nbytes)


@pytest.mark.parametrize(("file_bytes", "nbytes"), [(200, 9), (200, 11), (105, 6), (100, 1)])
def test_a_part_with_other_bytes_is_refused(file_bytes, nbytes):
    with pytest.raises(ProtocolError, match="were asked for"):
        StageData.decode(frame_of(StageData(file_bytes, b"x" * nbytes).encode(7)), FETCH)


def test_another_answer_is_refused():
    with pytest.raises(ProtocolError, match="the answer to a STAGE_FETCH is STAGE_FETCH"):
        StageData.decode(frame_of(FETCH.encode(7)), FETCH)
