"""The newest row of a key, wherever it is."""

from __future__ import annotations

import pytest
from tests.tailrace_server.stored import StoredPartition

from tailrace.errors import UnknownFeed
from tailrace.model.hashing import key_hash
from tailrace_server.partition.newest_row import newest_row


@pytest.fixture
def partition():
    """One with three keys: each in a segment, and two of them in a later segment or in the tree as well."""
    made = StoredPartition()
    made.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    made.sync()
    made.flush()
    made.put((b"b", b"4"))
    made.sync()
    made.flush()
    made.put((b"c", None))
    assert made.index_keys(lambda: False)
    return made


@pytest.mark.parametrize(("key", "seq", "value"), [(b"a", 1, b"1"), (b"b", 4, b"4"), (b"c", 5, None)])
def test_it_is_in_the_tree_or_in_the_newest_segment_that_has_the_key(partition, key, seq, value):
    for hash_ in (None, key_hash(key)):
        found = newest_row(partition, key, hash_=hash_)
        assert (found.seq, found.value) == (seq, value)


def test_segments_are_read_only_for_keys_that_the_tree_does_not_have(partition):
    def read(*_):
        raise OSError("it is read")

    assert newest_row(partition, b"c", read=read).value is None
    with pytest.raises(OSError, match="it is read"):
        newest_row(partition, b"a", read=read)


def test_a_key_that_is_nowhere(partition):
    assert newest_row(partition, b"d") is None
    assert newest_row(StoredPartition(), b"a") is None


def test_a_dropped_feed_has_no_rows(partition):
    partition.drop()
    with pytest.raises(UnknownFeed, match="was dropped"):
        newest_row(partition, b"a")
