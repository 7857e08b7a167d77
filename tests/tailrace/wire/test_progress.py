"""PROGRESS as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError
from tailrace.model import Level
from tailrace.model.failover import SEQ_MAX
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import FRAME_HEADER_BYTES
from tailrace.wire.opcodes import Opcode
from tailrace.wire.progress import Progress

ID = b"i" * 16


def decoded(value):
    return Progress.decode(memoryview(encode_json(Opcode.PROGRESS, value))[FRAME_HEADER_BYTES:])


@given(st.sampled_from(Level), st.dictionaries(st.integers(0, 4_095), st.integers(0, SEQ_MAX)))
def test_it_comes_out_as_it_went_in(level, seqs):
    told = Progress(ID, level, seqs)
    assert decoded(told.to_json()) == told


def test_the_level_may_be_left_out():
    assert decoded({"feed_id": ID.hex(), "seqs": {}}) == Progress(ID, Level.DISK, {})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seqs": []}, "seqs"),
        ({"seqs": {"x": 1}}, "'x' in 'seqs' is not the number of a partition"),
        ({"seqs": {"-1": 1}}, "'-1' in 'seqs' is not the number of a partition"),
        ({"seqs": {"\u0661": 1}}, "is not the number of a partition"),
        ({"seqs": {"123456": 1}}, "'123456' in 'seqs' is not the number of a partition"),
        ({"seqs": {"0": -1}}, "-1 of partition 0 is not a seq"),
        ({"seqs": {"0": SEQ_MAX + 1}}, "of partition 0 is not a seq"),
        ({"seqs": {"0": True}}, "True of partition 0 is not a seq"),
        ({"seqs": {"0": 1.0}}, "1.0 of partition 0 is not a seq"),
        ({"level": "gold"}, "level 'gold' is none of"),
        ({"feed_id": "00"}, "feed_id"),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    with pytest.raises(ProtocolError, match=message):
        decoded({"feed_id": ID.hex(), "level": "disk", "seqs": {"0": 1}} | changes)
