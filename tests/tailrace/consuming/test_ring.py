import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import Stamps, encode_block
from tailrace.consuming.ring import SMALL_ROWS, Ring, RingChange, RingChunk, unbounded_ring

PLENTY = 1 << 40


def ring_of(*entries, rows_max=PLENTY, bytes_max=PLENTY):
    ring = Ring(rows_max, bytes_max)
    for seq, key in entries:
        ring.add([seq], [key])
    return ring


def test_keys_above_a_seq_once_each():
    ring = ring_of((1, b"a"), (2, b"b"), (3, b"a"), (4, b"c"), (5, b"a"))
    assert ring.keys_above(2) == [b"a", b"c"]
    assert ring.keys_above(5) == []
    assert (ring.top_seq, ring.floor_seq, ring.rows) == (5, 0, 5)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("rows", [1, SMALL_ROWS - 1, SMALL_ROWS, 500])
def test_the_rows_of_a_block(rows, dense):
    keys = [b"key %d" % row for row in range(rows)]
    seqs = [10 + 2 * row for row in range(rows)]
    if dense:
        seqs = range(10, 10 + rows)
    block = encode_block(keys, [b"v"] * rows, partition=0, stamps=Stamps(seqs, [1] * rows))
    ring = Ring(PLENTY, PLENTY, 9)
    ring.add_block(block)
    assert ring.keys_above(9) == keys
    assert ring.keys_above(seqs[rows // 2]) == keys[rows // 2 + 1 :]
    assert ring.top_seq == seqs[-1]
    for chunk in ring.chunks_above(0):
        assert RingChunk.parse(chunk.data) == chunk


def test_a_chunk_and_its_bytes():
    chunk = RingChunk.of([3, 5, 5], [b"a", b"", b"ccc"])
    assert list(chunk.entries()) == [(3, b"a"), (5, b""), (5, b"ccc")]
    assert RingChunk.parse(chunk.data) == chunk
    assert list(chunk.cut_above(4).entries()) == [(3, b"a")]
    assert chunk.cut_above(2) is None
    assert chunk.cut_above(5) is chunk


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 8, b"\0" * 16, b"\1" + b"\0" * 15, RingChunk.of([1], [b"k"]).data + b"x"]
)
def test_what_is_no_chunk(data):
    with pytest.raises(ValueError, match="a chunk of a ring"):
        RingChunk.parse(data)


def test_a_bound_in_entries_keeps_at_least_so_many():
    ring = Ring(1000, PLENTY)
    for number in range(50):
        ring.add_chunk(RingChunk.of(range(100 * number + 1, 100 * number + 101), [b"%d" % number] * 100))
    assert 1000 <= ring.rows < 1100
    assert ring.floor_seq <= 4000
    assert ring.keys_above(ring.floor_seq) == [b"%d" % number for number in range(50 - ring.rows // 100, 50)]


def test_a_bound_in_bytes_is_kept_whatever_comes():
    ring = Ring(PLENTY, 10_000)
    for seq in range(1, 500):
        ring.add([seq], [b"k" * 100])
        assert ring.nbytes <= 10_000
    assert ring.floor_seq <= 499
    ring.add_chunk(RingChunk.of([500], [b"k" * 20_000]))
    assert (ring.rows, ring.floor_seq, ring.top_seq) == (0, 500, 500)


def test_no_ring_covers_nothing_that_was_delivered():
    ring = Ring(0, PLENTY)
    ring.add([1, 2], [b"a", b"b"])
    ring.add_chunk(RingChunk.of([3], [b"c"]))
    assert (ring.rows, ring.floor_seq, ring.top_seq) == (0, 3, 3)
    assert ring.floor_seq <= 3


def test_looking_does_not_change_what_is_covered():
    """A decision and the keys that it needs are two calls."""
    ring = Ring(2, PLENTY)
    ring.add_chunk(RingChunk.of([1, 2, 3], [b"a", b"b", b"c"]))
    ring.add([4], [b"d"])
    assert ring.floor_seq <= 1
    assert ring.keys_above(1) == [b"b", b"c", b"d"]
    assert ring.floor_seq <= 1


def test_what_was_read_again_stays_in_the_ring():
    ring = ring_of((1, b"a"), (2, b"b"), (3, b"a"), (4, b"c"))
    change = ring.replacing(2, 9, [b"a", b"c"])
    ring.apply(change)
    assert ring.keys_above(1) == [b"b", b"a", b"c"]
    assert ring.keys_above(8) == [b"a", b"c"]
    assert ring.top_seq == 9
    ring.add([3], [b"x"])
    assert ring.keys_above(2) == [b"a", b"c", b"x"]
    assert ring.keys_above(3) == [b"a", b"c"]


ENTRIES = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([b"a", b"b", b"c", b"dd"])), min_size=1, max_size=4)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ENTRIES),
        st.tuples(st.just("chunk"), ENTRIES),
        st.tuples(st.just("replace"), st.integers(0, 30), st.integers(0, 5)),
        st.tuples(st.just("cut"), st.integers(0, 30)),
        st.tuples(st.just("look"), st.integers(0, 30)),
    ),
    max_size=12,
)


@given(CHANGES, st.sampled_from([0, 1, 3, PLENTY]), st.sampled_from([300, 900, PLENTY]))
def test_a_ring_is_a_list_of_entries_whose_oldest_may_be_missing(changes, rows_max, bytes_max):
    ring, stored, entries = Ring(rows_max, bytes_max), unbounded_ring(RingChange(0)), []
    for name, *arguments in changes:
        if name in ("add", "chunk"):
            seq = max((seq for seq, _ in entries), default=0)
            added = []
            for step, key in arguments[0]:
                seq += step
                added.append((seq, key))
            chunk = RingChunk.of(*zip(*added, strict=True))
            ring.add(*zip(*added, strict=True)) if name == "add" else ring.add_chunk(chunk)
            entries += added
            stored.apply(RingChange(ring.floor_seq, None, (chunk,)))
        elif name == "look":
            ring.keys_above(arguments[0])
        elif arguments[0] >= ring.floor_seq:
            seq = arguments[0]
            keys = ring.keys_above(seq)
            by_seq = max([seq, *(at for at, _ in entries)]) + arguments[-1]
            again = name == "replace"
            change = ring.replacing(seq, by_seq, keys) if again else RingChange(ring.floor_seq, seq)
            entries = [entry for entry in entries if entry[0] <= seq] + [(by_seq, key) for key in keys if again]
            ring.apply(change)
            stored.apply(change)
        for seq in range(max((seq for seq, _ in entries), default=0) + 2):
            if seq >= ring.floor_seq:
                expected = {key for at, key in entries if at > seq}
                assert set(ring.keys_above(seq)) == expected
                assert set(stored.keys_above(seq)) == expected, "an index that stores the changes knows the same"
        assert ring.nbytes <= bytes_max
