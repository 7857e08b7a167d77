import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import BODY_BYTES_MAX, ROWS_MAX, VALUE_BYTES_MAX, encode_block
from tailrace_server.blocks import BlockBuilder, arrays_of, take
from tailrace_server.blocks.builder import TARGET_BYTES_MAX


@given(st.data(), st.lists(st.integers(0, 100), max_size=6), st.integers(1, 1200), st.booleans())
def test_the_selected_rows_come_out_in_blocks_of_a_size(
    history, split, make_block, read_rows, data, cuts, target_bytes, compress
):
    rows = data.draw(history)
    made, kept = [], []
    builder = BlockBuilder(3, target_bytes, compress=compress, on_block=made.append)
    for part in split(rows, cuts):
        keep = data.draw(st.lists(st.booleans(), min_size=len(part), max_size=len(part)))
        kept += [row for row, yes in zip(part, keep, strict=True) if yes]
        arrays = arrays_of(make_block(part))
        builder.add(take(arrays, np.flatnonzero(keep)))
    builder.finish()
    assert read_rows(*made) == kept
    for block in made:
        assert block.rows == 1 or block.header.raw_bytes <= target_bytes
    for before, after in itertools.pairwise(made):
        first = read_rows(after)[0]
        room = target_bytes - before.header.raw_bytes
        assert room < 150 + 16 * (before.rows + 1) + len(first[0]) + len(first[1] or b""), "a row more had fitted"


def test_whole_blocks_are_joined(make_block, read_rows):
    made = []
    builder = BlockBuilder(3, 100_000, compress=False, on_block=made.append)
    rows = [(b"%d" % seq, b"v" * 50, seq, seq) for seq in range(1, 2001)]
    for at in range(0, 2000, 100):
        builder.add(arrays_of(make_block(rows[at : at + 100])))
    assert len(made) == 1
    builder.finish()
    builder.finish()
    assert read_rows(*made) == rows
    assert len(made) == 2
    assert 85_000 < made[0].header.raw_bytes <= 100_000
    builder.add(arrays_of(make_block([(b"a", b"b", 2001, 2001)])))
    builder.finish()
    assert len(made) == 3


def test_rows_end_a_block_too():
    made = []
    builder = BlockBuilder(3, TARGET_BYTES_MAX, compress=True, on_block=made.append)
    block = encode_block([b"k"] * ROWS_MAX, [None] * ROWS_MAX, partition=3)
    for times in range(3):
        builder.add(take(arrays_of(block.stamped(1 + times * ROWS_MAX, 1)), slice(0, ROWS_MAX - 10)))
    builder.finish()
    assert [block.rows for block in made] == [ROWS_MAX, ROWS_MAX, ROWS_MAX - 30]


def test_the_largest_values_fit_whatever_the_target():
    for target_bytes in (1, TARGET_BYTES_MAX):
        made = []
        builder = BlockBuilder(3, target_bytes, compress=True, on_block=made.append)
        for seq in range(1, 4):
            block = encode_block([b"k" * 4096], [bytes(VALUE_BYTES_MAX)], partition=3)
            builder.add(arrays_of(block.stamped(seq, seq)))
        builder.finish()
        assert sum(block.rows for block in made) == 3
        assert all(block.header.raw_bytes <= BODY_BYTES_MAX for block in made)


def test_rows_out_of_order_are_refused(make_block):
    builder = BlockBuilder(3, 1000, compress=False, on_block=lambda block: None)
    builder.add(arrays_of(make_block([(b"a", b"1", 5, 7)])))
    with pytest.raises(ValueError, match="seq 5 comes after seq 5"):
        builder.add(arrays_of(make_block([(b"a", b"1", 5, 7)])))
    with pytest.raises(ValueError, match="timestamp 6 of seq 6 comes after 7"):
        builder.add(arrays_of(make_block([(b"a", b"1", 6, 6)])))


@pytest.mark.parametrize("target_bytes", [0, TARGET_BYTES_MAX + 1])
def test_a_target_that_no_block_can_have(target_bytes):
    with pytest.raises(ValueError, match="blocks have 1 to"):
        BlockBuilder(3, target_bytes, compress=False, on_block=lambda block: None)
