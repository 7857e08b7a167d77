from __future__ import annotations

import json

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tailrace.copies.layout import (
    VERSION,
    FeedCopy,
    PartitionCopy,
    SegmentCopy,
    UnknownCopyVersion,
    decode_checkpoint,
    encode_checkpoint,
)
from tailrace.model import FeedInfo
from tailrace.model.failover import SEQ_MAX, FailoverLog

FEED_ID = b"f" * 16
INFO = FeedInfo("orders", FEED_ID, 16, "hash", "compact", None, None, 259_200, "stream")
FEED = FeedCopy(b"c" * 16, INFO, (0, 3, 15))
LOG = FailoverLog([(b"b" * 16, 2, 5), (b"a" * 16, 1, 0)])
SEGMENTS = (SegmentCopy(b"1" * 16, 900, b"s" * 16, 3, 7), SegmentCopy(b"2" * 16, 800, b"t" * 16, 8, 8))
PARTITION = PartitionCopy(3, 8, 2, LOG, SEGMENTS)
ids = st.binary(min_size=16, max_size=16)


def changed(data, **members):
    """The line of JSON with other members, and a sum that fits; a member of ... is left out."""
    value = {name: member for name, member in (json.loads(data) | members).items() if member is not ...}
    del value["sum"]
    text = json.dumps(value, separators=(",", ":"))
    value["sum"] = f"{xxhash.xxh3_64_intdigest(text.encode()):016x}"
    return json.dumps(value).encode()


@given(
    ids,
    st.builds(
        FeedInfo,
        st.text(min_size=1, max_size=20),
        ids,
        st.just(9),
        st.just("hash"),
        st.sampled_from(["compact", "history"]),
        st.none() | st.floats(0, 1e9),
        st.none() | st.integers(0, 2**40),
        st.integers(0, 10**6),
        st.sampled_from(["stream", "segment"]),
        st.sampled_from([None, "disk"]),
    ),
    st.sets(st.integers(0, 8)),
)
def test_a_feed_is_read_as_it_was_written(cluster_id, info, fetched):
    feed = FeedCopy(cluster_id, info, tuple(sorted(fetched)))
    assert FeedCopy.decode(feed.encode()) == feed._replace(feed=info._replace(level=None, ttl_s=None))


@st.composite
def partitions(draw):
    seq = draw(st.integers(0, 5))
    segments = []
    for id_ in draw(st.sets(ids, max_size=5)):
        first_seq, seq = seq + 1, seq + draw(st.integers(1, 9))
        segments.append(SegmentCopy(id_, draw(st.integers(1, 2**40)), draw(ids), first_seq, seq))
    return PartitionCopy(draw(st.integers(0, 99)), seq, draw(st.integers(0, seq)), LOG, tuple(segments))


@given(partitions())
def test_a_checkpoint_is_read_as_it_was_written(copy):
    assert decode_checkpoint(encode_checkpoint(FEED_ID, copy), FEED_ID, copy.partition) == copy


def test_the_first_seq_and_the_bytes_of_a_partition():
    assert (PARTITION.first_seq, PARTITION.nbytes) == (3, 1700)
    assert PARTITION._replace(segments=()).first_seq == 9


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"feed_id": "00" * 16}, "it is of the feed with the id 0000"),
        ({"partition": 4}, "it is of partition 4, not 3"),
        ({"partition": True}, "not an integer"),
        ({"seq": -1}, "seq is -1, not an integer"),
        ({"seq": 2**63}, "seq is 9223372036854775808"),
        ({"seq": 9}, "the last segment ends at seq 8, and the partition at 9"),
        ({"purge_seq": 9}, "the purge seq 9 is above the seq, 8"),
        ({"log": [["zz", 1, 0]]}, "branch"),
        ({"log": 7}, "a failover log is a list"),
        ({"segments": {}}, "segments must be a list"),
        ({"segments": [7]}, "a segment must be an object"),
        ({"more": 1}, "missing or not known: more"),
        ({"log": ...}, "missing or not known: log"),
        ({"format": "other"}, "it is no 'tailrace copy of a partition'"),
    ],
)
def test_checkpoints_that_are_refused(members, why):
    with pytest.raises(ValueError, match=why):
        decode_checkpoint(changed(encode_checkpoint(FEED_ID, PARTITION), **members), FEED_ID, 3)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"file": "../../etc/passwd"}, r"the file of segment 3131.* is '../../etc/passwd'"),
        ({"file": "/" + "31" * 16 + ".seg"}, "the file of segment"),
        ({"file": 7}, "the file of segment"),
        ({"id": "31"}, "32 hexadecimal digits"),
        ({"bytes": 0}, "bytes is 0"),
        ({"bytes": 1.0}, "bytes is 1.0"),
        ({"checksum": "x" * 32}, "hexadecimal"),
        ({"first_seq": 0}, "first_seq is 0"),
        ({"last_seq": 2}, "last_seq is 2, not an integer from 3"),
        ({"last_seq": 6}, "a segment begins at seq 8, the one before it ends at 6"),
        ({"extra": 1}, "exactly the members"),
    ],
)
def test_segments_that_are_refused(members, why):
    data = encode_checkpoint(FEED_ID, PARTITION)
    first, second = json.loads(data)["segments"]
    with pytest.raises(ValueError, match=why):
        decode_checkpoint(changed(data, segments=[first | members, second]), FEED_ID, 3)


def test_a_segment_that_is_there_twice_is_refused():
    twice = (SEGMENTS[0], SEGMENTS[1]._replace(id=SEGMENTS[0].id))
    with pytest.raises(ValueError, match="twice"):
        encode_checkpoint(FEED_ID, PARTITION._replace(segments=twice))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"cluster_id": "00"}, "cluster_id"),
        ({"partitions": 0}, "partitions is 0"),
        ({"partitions": 15}, "a member of fetched is 15"),
        ({"fetched": [3, 0]}, "must rise"),
        ({"fetched": 3}, "fetched must be a list"),
        ({"retention": "both"}, "retention is 'both'"),
        ({"name": ""}, "name is ''"),
        ({"tombstone_age_s": "long"}, "tombstone_age_s is 'long'"),
        ({"history_age_s": True}, "history_age_s is True"),
    ],
)
def test_feeds_that_are_refused(members, why):
    with pytest.raises(ValueError, match=why):
        FeedCopy.decode(changed(FEED.encode(), **members))


def test_a_newer_version_is_refused_by_its_number():
    with pytest.raises(
        UnknownCopyVersion, match=f"has version {VERSION + 1} of the layout; .* knows version {VERSION}"
    ):
        FeedCopy.decode(changed(FEED.encode(), version=VERSION + 1))
    with pytest.raises(UnknownCopyVersion, match="has version 9"):
        decode_checkpoint(changed(encode_checkpoint(FEED_ID, PARTITION), version=9), FEED_ID, 3)


@pytest.mark.parametrize("data", [FEED.encode(), encode_checkpoint(FEED_ID, PARTITION)], ids=["feed", "checkpoint"])
def test_every_changed_byte_and_every_cut_is_refused(data):
    def decode(changed_data):
        if data == FEED.encode():
            FeedCopy.decode(changed_data)
        else:
            decode_checkpoint(changed_data, FEED_ID, 3)

    decode(data)
    for place in range(len(data) - 1):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(ValueError, match=r"\w"):
            decode(bytes(damaged))
        with pytest.raises(ValueError, match=r"\w"):
            decode(data[:place])


@given(st.binary(max_size=200) | st.just(b"[" * 100_000) | st.just(b'{"seq":1e999}') | st.just(b"null"))
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match=r"\w"):
        FeedCopy.decode(data)
    with pytest.raises(ValueError, match=r"\w"):
        decode_checkpoint(data, FEED_ID, 3)


def test_the_greatest_seqs():
    copy = PartitionCopy(3, SEQ_MAX, SEQ_MAX, LOG, (SegmentCopy(b"1" * 16, 1, bytes(16), SEQ_MAX, SEQ_MAX),))
    assert decode_checkpoint(encode_checkpoint(FEED_ID, copy), FEED_ID, 3) == copy
