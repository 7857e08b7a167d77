from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.identity import IDENTITY_BYTES_MAX, INCLUDED_IDS_MAX, NO_BASE, ROWS_MAX, SegmentIdentity

SEQ_MAX = 2**63 - 1
ids = st.binary(min_size=16, max_size=16)


@st.composite
def identities(draw):
    after_seq = draw(st.integers(0, SEQ_MAX - 1))
    last_seq = draw(st.integers(after_seq + 1, SEQ_MAX))
    rows = draw(st.integers(0, min(ROWS_MAX, last_seq - after_seq)))
    oldest = draw(st.integers(0, SEQ_MAX))
    return SegmentIdentity(
        feed_id=draw(ids),
        partition=draw(st.integers(0, 2**31 - 1)),
        branch=draw(ids),
        segment_id=draw(ids),
        base_id=draw(ids),
        included_ids=tuple(draw(st.lists(ids, max_size=INCLUDED_IDS_MAX))),
        is_major=draw(st.booleans()),
        deduplicated=draw(st.booleans()),
        after_seq=after_seq,
        last_seq=last_seq,
        purge_seq=draw(st.integers(0, last_seq)),
        rows=rows,
        tombstones=draw(st.integers(0, rows)),
        oldest_timestamp=oldest,
        newest_timestamp=draw(st.integers(oldest, SEQ_MAX)),
        key_value_bytes=draw(st.integers(0, SEQ_MAX)),
    )


@given(identities())
def test_what_is_encoded_is_decoded(identity):
    identity.check()
    assert SegmentIdentity.decode(identity.encode()) == identity


def test_the_longest_identity_is_within_the_bound():
    longest = SegmentIdentity(
        b"\xff" * 16,
        2**31 - 1,
        b"\xff" * 16,
        b"\xff" * 16,
        b"\xff" * 16,
        (b"\xff" * 16,) * INCLUDED_IDS_MAX,
        *(False,) * 2,
        SEQ_MAX - 1,
        SEQ_MAX,
        SEQ_MAX,
        1,
        1,
        SEQ_MAX,
        SEQ_MAX,
        SEQ_MAX,
    )
    longest.check()
    assert len(longest.encode()) <= IDENTITY_BYTES_MAX


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"feed_id": b"short"}, "feed_id must have 16 bytes"),
        ({"base_id": b""}, "base_id must have 16 bytes"),
        ({"included_ids": (b"x",)}, "included segment's id must have 16 bytes"),
        ({"included_ids": (NO_BASE,) * (INCLUDED_IDS_MAX + 1)}, "65 included segments; at most 64"),
        ({"partition": -1}, "partition is -1, it must be a number from 0 to 2147483647"),
        ({"partition": True}, "partition is True"),
        ({"last_seq": 2**63}, "last_seq is 9223372036854775808"),
        ({"rows": 1.5}, "rows is 1.5"),
        ({"after_seq": 9}, r"the run \(9, 9\] is empty"),
        ({"purge_seq": 10}, "the purge seq 10 is above the last seq, 9"),
        ({"rows": 10}, r"10 rows do not fit into the run \(0, 9\]"),
        ({"tombstones": 1}, "1 tombstones among 0 rows"),
        ({"oldest_timestamp": 2}, "the oldest timestamp, 2, is above 0"),
    ],
)
def test_what_cannot_be_is_refused(identity_of, members, why):
    identity = identity_of(9)._replace(**members)
    with pytest.raises(SegmentFormatError, match=why):
        identity.check()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rows": None}, "rows is None"),
        ({"feed_id": 5}, "feed_id must be 32 hexadecimal digits, it is '5'"),
        ({"feed_id": "F" * 32}, "feed_id must be 32 hexadecimal digits"),
        ({"included_ids": "0" * 32}, "included_ids must be a list"),
        ({"included_ids": ["00"]}, "included_ids must be 32 hexadecimal digits"),
        ({"is_major": 1}, "is_major must be true or false"),
        ({"colour": 1}, "an object of exactly the members feed_id, partition"),
        ({"tombstones": 3}, "3 tombstones among 0 rows"),
    ],
)
def test_other_json_is_refused(identity_of, change, why):
    members = json.loads(identity_of(9).encode()) | change
    with pytest.raises(SegmentFormatError, match=why):
        SegmentIdentity.decode(json.dumps(members).encode())


@given(st.binary(max_size=50) | st.sampled_from([b"[]", b"1", b"null", b"{}", b'{"feed_id":', b"\xff" * 9]))
def test_other_bytes_are_refused(data):
    with pytest.raises(SegmentFormatError, match="the identity"):
        SegmentIdentity.decode(data)
