"""What a filter leaves of a block, against the same done row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import Block, Stamps, encode_block
from tailrace.block.filtering import filter_block
from tailrace.model.hashing import key_hash
from tailrace.wire.filters import StreamFilter


def rows_of(block):
    columns = block.columns()
    return list(
        zip(columns.seqs(), columns.timestamps(), columns.hashes(), columns.keys(), columns.values(), strict=True)
    )


def block_of(rows, *, first_seq=1, gap=0, compress=False):
    """A block of (key, value), whose seqs leave out ``gap`` after each."""
    seqs = list(range(first_seq, first_seq + len(rows) * (gap + 1), gap + 1))
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    stamps = Stamps(seqs, [1000 + seq // 3 for seq in seqs])
    return encode_block(keys, values, partition=3, compress=compress, stamps=stamps)


starts = st.sampled_from([b"", b"a", b"ab", b"order/2026/", b"order/2027/11", bytes(range(200)), b"order/2026/11/21/x"])
keys = st.builds(bytes.__add__, starts, st.binary(min_size=1, max_size=3))
rows = st.tuples(keys, st.none() | st.binary(max_size=3) | st.just(bytes(90)))


@given(
    st.one_of(st.lists(rows, min_size=1, max_size=4), st.lists(rows, min_size=30, max_size=80)),
    starts | st.binary(max_size=2) | keys,
    st.booleans(),
    st.integers(0, 2),
    st.booleans(),
)
def test_what_is_left_is_what_matches(rows, prefix, keys_only, gap, compress):
    block = block_of(rows, first_seq=41, gap=gap, compress=compress)
    expected = [
        (seq, timestamp, hash_, key, b"" if keys_only and value is not None else value)
        for seq, timestamp, hash_, key, value in rows_of(block)
        if key.startswith(prefix)
    ]
    found = filter_block(block, StreamFilter(prefix, keys_only))
    if found is None:
        assert not expected
    elif expected == rows_of(block):
        assert found is block, "what matches as a whole goes out as it is"
    else:
        assert rows_of(Block.parse(found.tobytes())) == expected
        assert (found.header.partition, found.header.producer_id, found.header.producer_seq) == (3, 0, 0)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 31, 4096])
def test_prefixes_of_any_length_are_compared_to_their_last_byte(length):
    prefix = bytes(index % 251 for index in range(length))
    others = [prefix[:-1] + b"\xff", prefix[:-1] or b"\xfe", b"\xff" + prefix[1:]]
    block = block_of([(key, b"value") for key in [prefix, *others] * 10])
    assert {row[3] for row in rows_of(filter_block(block, StreamFilter(prefix)))} == {prefix}


def test_keys_of_another_hash_than_their_own_are_kept_as_they_are():
    """The hashes are the producer's word: they go out as they came."""
    hashes = [key_hash(b"other")] * 2
    block = encode_block([b"a", b"b"], [b"1", b"2"], partition=0, hashes=hashes).stamped(5, 1)
    assert rows_of(filter_block(block, StreamFilter(b"b"))) == [(6, 1, hashes[0], b"b", b"2")]
