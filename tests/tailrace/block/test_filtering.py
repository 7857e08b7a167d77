"""What a filter leaves of a block, against the same done row by row."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import Block, Stamps, encode_block
from tailrace.block.filtering import FEW_ROWS, begin_with, filter_block
from tailrace.errors import BadBlock
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


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 10, FEW_ROWS, FEW_ROWS + 1, 300])
@pytest.mark.parametrize("odd", [None, b"e", b"eu", b"eu/", b"us/1", b"xeu/"])
def test_whether_all_keys_begin_with_a_prefix(rows, odd, compress):
    """As a loop over the keys says, wherever the odd key is, deletions included, and for the empty prefix."""
    for place in {0, rows // 2, rows - 1}:
        keys = [b"eu/%d" % row for row in range(rows)]
        if odd:
            keys[place] = odd
        for value in (b"v", b"", None):
            data = encode_block(keys, [value] * rows, partition=0, compress=compress).tobytes()
            for prefix in (b"eu/", b"e", b"eu/0", b"", b"eu/" + b"0" * 20):
                block = Block.parse(data)
                assert begin_with(block, prefix) == all(key.startswith(prefix) for key in keys)
                block.check_columns()


def test_a_broken_row_is_found_before_its_prefix():
    data = encode_block([b"eu/1"], [b"v"], partition=0, compress=False)
    for place in range(len(data.body)):
        body = bytearray(data.body)
        body[place] ^= 0x40
        block = Block(data.header, data.head, bytes(body))
        try:
            Block(data.header, data.head, bytes(body)).check_columns()
        except BadBlock:
            with pytest.raises(BadBlock):
                begin_with(block, b"eu/")
        else:
            assert begin_with(block, b"eu/") == block.columns().keys()[0].startswith(b"eu/")
