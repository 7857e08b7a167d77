import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import FLAG_COMPRESSED, FLAG_SEQS, FLAG_TIMESTAMPS, FLAG_TOMBSTONES, ROWS_MAX, Block
from tailrace.block.arrays import join_arrays, join_blocks
from tailrace.errors import BadBlock, TooLarge
from tailrace.model.hashing import key_hash
from tailrace_server.blocks import ColumnArrays, arrays_of, encode_arrays, take


def assert_rows(arrays, rows):
    """``arrays`` hold exactly ``rows``."""
    assert arrays.rows == len(rows)
    assert arrays.seqs.tolist() == [seq for _, _, seq, _ in rows]
    assert arrays.timestamps.tolist() == [timestamp for _, _, _, timestamp in rows]
    assert arrays.hashes.tolist() == [key_hash(key) for key, _, _, _ in rows]
    assert strings(arrays.key_offsets, arrays.key_data) == [key for key, _, _, _ in rows]
    assert strings(arrays.value_offsets, arrays.value_data) == [value or b"" for _, value, _, _ in rows]
    valid = [True] * len(rows) if arrays.valid is None else arrays.valid.tolist()
    assert valid == [value is not None for _, value, _, _ in rows]


def strings(offsets, data):
    numbers = offsets.tolist()
    assert numbers[0] == 0
    assert numbers[-1] == len(data)
    return [data[start:stop].tobytes() for start, stop in itertools.pairwise(numbers)]


@given(st.data(), st.booleans())
def test_a_block_is_its_arrays(history, make_block, data, compress):
    rows = data.draw(history)
    block = make_block(rows, compress=compress)
    arrays = arrays_of(block)
    assert_rows(arrays, rows)
    assert encode_arrays(arrays, 3, compress=compress) == block


@given(st.data(), st.lists(st.integers(0, 100), max_size=8))
def test_neighbours_are_joined(history, split, make_block, data, cuts):
    rows = data.draw(history)
    blocks = [make_block(part) for part in split(rows, cuts)]
    assert_rows(join_blocks(blocks), rows)
    assert_rows(join_arrays([arrays_of(block) for block in blocks]), rows)


@given(st.data())
def test_rows_are_taken_by_indices_and_by_slices(history, make_block, data):
    rows = data.draw(history)
    arrays = arrays_of(make_block(rows))
    indices = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1))))
    assert_rows(take(arrays, np.array(indices, np.intp)), [rows[index] for index in indices])
    start, stop = data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))
    assert_rows(take(arrays, slice(start, stop)), rows[start:stop])


def test_columns_are_there_only_where_the_header_cannot_say_it(make_block):
    kinds = {
        0: [(b"a", b"1", 5, 9), (b"b", b"2", 6, 9)],
        FLAG_SEQS: [(b"a", b"1", 5, 9), (b"b", b"2", 7, 9)],
        FLAG_TIMESTAMPS: [(b"a", b"1", 5, 8), (b"b", b"2", 6, 9)],
        FLAG_TOMBSTONES: [(b"a", b"1", 5, 9), (b"b", None, 6, 9)],
        FLAG_COMPRESSED: [(b"a", b"1" * 500, 5, 9)],
    }
    for flags, rows in kinds.items():
        block = encode_arrays(arrays_of(make_block(rows)), 3, compress=True)
        assert block.header.flags == flags
        assert (block.header.producer_id, block.header.producer_seq) == (0, 0)


def test_a_mask_that_hides_every_tombstone_leaves_no_bitmap(make_block):
    arrays = arrays_of(make_block([(b"a", b"1", 1, 1), (b"b", None, 2, 1)]))
    assert encode_arrays(take(arrays, np.array([0])), 3, compress=False).header.flags == 0


@pytest.mark.parametrize(
    ("seqs", "timestamps"),
    [([0, 1, 2], [1, 1, 1]), ([3, 3, 4], [1, 1, 1]), ([1, 3, 2], [1, 1, 1]), ([1, 2, 3], [1, 2, 1])],
)
def test_numbers_that_fall_make_no_block(make_block, seqs, timestamps):
    arrays = arrays_of(make_block([(b"k", b"v", seq, 1) for seq in (1, 2, 3)]))
    wrong = arrays._replace(seqs=np.array(seqs, "<u8"), timestamps=np.array(timestamps, "<u8"))
    with pytest.raises(ValueError, match="never fall"):
        encode_arrays(wrong, 3, compress=False)


def test_arrays_that_break_the_format_make_no_block(make_block):
    arrays = arrays_of(make_block([(b"k", b"v", 1, 1), (b"l", b"w", 2, 1)]))
    with pytest.raises(BadBlock, match="tombstone"):
        encode_arrays(arrays._replace(valid=np.array([True, False])), 3, compress=False)
    with pytest.raises(ValueError, match="at least one row"):
        encode_arrays(take(arrays, slice(0, 0)), 3, compress=False)
    rows = ROWS_MAX + 1
    many = ColumnArrays(
        np.zeros(rows, "<u8"),
        np.arange(1, rows + 1, dtype="<u8"),
        np.ones(rows, "<u8"),
        np.arange(rows + 1, dtype="<u4"),
        np.zeros(rows, "u1"),
        None,
        np.zeros(rows + 1, "<u4"),
        np.zeros(0, "u1"),
    )
    with pytest.raises(TooLarge, match="at most 65536 rows"):
        encode_arrays(many, 3, compress=False)
    assert encode_arrays(take(many, slice(0, ROWS_MAX)), 3, compress=True).rows == ROWS_MAX


def test_arrays_of_a_block_that_lies_askew_in_a_buffer(make_block):
    rows = [(b"key", b"value", 1, 5), (b"other", None, 4, 6)]
    data = b"xyz" + make_block(rows).tobytes()
    assert_rows(arrays_of(Block.parse_at(data, 3)), rows)
