"""The chain of a partition's segments, and who reads them."""

import pytest
from tests.tailrace_server.stored import StoredPartition

from tailrace.model.hashing import key_hash
from tailrace.segment.file import read_from
from tailrace_server.partition.chain import Chain, LostSegment, Pins
from tailrace_server.segment import SegmentDamaged


@pytest.fixture
def partition():
    """Segments (0, 2], (2, 4], (4, 5]."""
    made = StoredPartition()
    for rows in ([(b"a", b"1"), (b"b", b"2")], [(b"a", b"3"), (b"c", None)], [(b"b", None)]):
        made.put(*rows)
        made.sync()
        made.flush()
    return made


def runs(segments):
    return [(segment.identity.after_seq, segment.identity.last_seq) for segment in segments]


def found(chain, key):
    row = chain.find(key, key_hash(key))
    return row and (row.seq, row.value)


def test_it_begins_empty():
    chain = Chain()
    assert (chain.flushed_seq, chain.nbytes, chain.after(0)) == (0, 0, ())
    assert found(chain, b"a") is None
    chain.check()


def test_the_newest_row_of_a_key(partition):
    assert found(partition.chain, b"a") == (3, b"3")
    assert found(partition.chain, b"b") == (5, None), "a deletion hides what is older"
    assert found(partition.chain, b"c") == (4, None)
    assert found(partition.chain, b"x") is None


def test_older_segments_are_not_looked_at_where_a_newer_one_has_it(partition):
    first = partition.chain.segments[0]
    first.find = None
    assert found(partition.chain, b"b") == (5, None)


@pytest.mark.parametrize(
    ("seq", "expected"), [(0, [(0, 2), (2, 4), (4, 5)]), (1, [(0, 2), (2, 4), (4, 5)]), (2, [(2, 4), (4, 5)]), (5, [])]
)
def test_what_covers_anything_above(partition, seq, expected):
    assert runs(partition.chain.after(seq)) == expected


def test_a_fold_takes_the_place_of_its_input(partition):
    before = partition.chain
    partition.fold(0, 1)
    assert runs(before.segments) == [(0, 2), (2, 4), (4, 5)], "a chain never changes"
    assert runs(partition.chain.segments) == [(0, 4), (4, 5)]
    assert partition.chain.nbytes == sum(segment.nbytes for segment in partition.chain.segments)
    partition.check()
    assert found(partition.chain, b"a") == (3, b"3")


def test_only_neighbours_are_folded(partition):
    first, _, last = partition.chain.segments
    with pytest.raises(AssertionError, match="neighbours"):
        partition.chain.with_compacted([first, last], first)


def test_segments_are_contiguous(partition):
    first, second, third = partition.chain.segments
    with pytest.raises(AssertionError, match="contiguous"):
        Chain([first]).with_flushed(third)
    with pytest.raises(AssertionError, match="gap"):
        Chain([first, third]).check()
    assert runs(Chain([first]).with_flushed(second).without_oldest(1).segments) == [(2, 4)]


# Keys of one hash


def test_keys_of_one_hash_do_not_hide_each_other(monkeypatch):
    monkeypatch.setattr("tailrace.block.encode.hash_keys", lambda keys: [7] * len(keys))
    made = StoredPartition()
    for rows in ([(b"a", b"1"), (b"b", b"2")], [(b"b", b"3")]):
        made.put(*rows)
        made.sync()
        made.flush()
    assert made.chain.find(b"a", 7).value == b"1"
    assert made.chain.find(b"b", 7).value == b"3"
    assert made.chain.find(b"c", 7) is None


# Readers


def test_a_segment_that_nobody_reads_is_free_at_once(partition):
    pins, first = Pins(), partition.chain.segments[0]
    pins.pin(first)
    pins.unpin(first)
    assert pins.take_free() == [], "it is still in its chain"
    pins.retire([first])
    assert pins.retired_bytes == 0
    assert pins.take_free() == [first]
    assert pins.take_free() == [], "each of them once"


def test_it_is_free_after_the_last_reader(partition):
    pins, (first, second, _) = Pins(), partition.chain.segments
    for segment in (first, first, second):
        pins.pin(segment)
    pins.retire([first, second])
    assert pins.retired_bytes == first.nbytes + second.nbytes
    pins.unpin(first)
    pins.unpin(second)
    assert pins.take_free() == [second]
    assert pins.retired_bytes == first.nbytes
    pins.unpin(first)
    assert pins.take_free() == [first]


# A segment that is not there


def test_a_lost_segment_keeps_its_place(partition):
    first, second, third = partition.chain.segments
    error = SegmentDamaged(second.path, 7, "it is gone")
    chain = Chain([first, LostSegment(second.identity, second.nbytes, error), third])
    chain.check()
    assert runs(chain.segments) == runs(partition.chain.segments)
    assert chain.nbytes == partition.chain.nbytes
    assert found(chain, b"b") == (5, None), "nothing older has to be looked at"
    lost = chain.after(2)[0]
    for attempt in (lambda: found(chain, b"a"), lambda: lost.read_blocks(lost.block_after(2), 1, read_from)):
        with pytest.raises(SegmentDamaged, match="damaged at offset 7: it is gone"):
            attempt()
    assert [(problem.offset, problem.why) for problem in lost.verify()] == [(7, "it is gone")]
    lost.close()
