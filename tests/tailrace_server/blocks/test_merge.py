import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import (
    BODY_BYTES_MAX,
    FLAG_COMPRESSED,
    FLAG_SEQS,
    FLAG_TIMESTAMPS,
    ROWS_MAX,
    VALUE_BYTES_MAX,
    Block,
    encode_block,
)
from tailrace.errors import BadBlock
from tailrace_server.blocks import fits, merge_blocks, merge_steps
from tailrace_server.blocks.merge import STEP_BLOCKS


@given(st.data(), st.lists(st.integers(0, 100), max_size=10), st.lists(st.booleans(), min_size=12, max_size=12))
def test_the_rows_stay_what_they_are(history, split, make_block, read_rows, data, cuts, compressed):
    rows = data.draw(history)
    parts = split(rows, cuts)
    blocks = [make_block(part, compress=yes) for part, yes in zip(parts, compressed, strict=False)]
    merged = merge_blocks(blocks, compress=compressed[-1])
    assert read_rows(merged) == rows
    assert read_rows(Block.parse(merged.tobytes())) == rows
    header = merged.header
    assert (header.first_seq, header.last_seq, header.timestamp) == (rows[0][2], rows[-1][2], rows[-1][3])
    assert (header.partition, header.producer_id, header.producer_seq) == (3, 0, 0)
    assert merged == make_block(rows, compress=compressed[-1])


def test_a_million_puts_would_be_dense_and_have_timestamps(read_rows):
    blocks = [encode_block([b"k"], [b"v"], partition=1, producer_id=9).stamped(n, 100 + n) for n in range(5, 69)]
    merged = merge_blocks(blocks, compress=False)
    assert merged.header.flags == FLAG_TIMESTAMPS
    assert (merged.rows, merged.header.first_seq, merged.header.last_seq) == (64, 5, 68)
    assert read_rows(merged) == [(b"k", b"v", n, 100 + n) for n in range(5, 69)]


def test_merged_blocks_are_merged_again(make_block, read_rows):
    rows = [(b"%d" % n, None if n % 3 else b"x" * n, 2 * n, 1000 + n) for n in range(1, 91)]
    singles = [make_block([row]) for row in rows]
    once = [merge_blocks(singles[at : at + 10], compress=True) for at in range(0, 90, 10)]
    assert {block.header.flags & FLAG_SEQS for block in once} == {FLAG_SEQS}
    assert merge_blocks(once, compress=True) == merge_blocks(singles, compress=True)
    assert read_rows(merge_blocks(once, compress=False)) == rows


def test_blocks_that_are_no_neighbours_are_refused(make_block):
    first, second = make_block([(b"a", b"1", 1, 5)]), make_block([(b"b", b"2", 2, 6)])
    with pytest.raises(ValueError, match="no blocks"):
        merge_blocks([], compress=False)
    with pytest.raises(ValueError, match="does not come after"):
        merge_blocks([second, first], compress=False)
    with pytest.raises(ValueError, match="has timestamp 4"):
        merge_blocks([first, make_block([(b"b", b"2", 2, 4)])], compress=False)
    with pytest.raises(ValueError, match="different partitions"):
        merge_blocks([first, make_block([(b"b", b"2", 2, 6)], partition=4)], compress=False)
    with pytest.raises(ValueError, match="no seqs yet"):
        merge_blocks([encode_block([b"a"], [b"1"], partition=3), second], compress=False)


def test_merging_can_be_left_alone_between_short_steps(make_block):
    blocks = [make_block([(b"k%d" % seq, b"v", seq, 5)]) for seq in range(1, 2 * STEP_BLOCKS + 2)]
    steps = list(merge_steps(blocks, compress=False))
    assert steps[:-1] == [None, None, None]
    assert steps[-1] == merge_blocks(blocks, compress=False)


@pytest.mark.parametrize("compress", [False, True])
def test_a_body_that_was_damaged_in_memory_is_not_merged(make_block, compress):
    first, second = make_block([(b"a", b"1" * 400, 1, 5)], compress=compress), make_block([(b"b", b"2", 2, 6)])
    assert bool(first.header.flags & FLAG_COMPRESSED) is compress
    body = bytearray(first.body)
    body[30] ^= 1
    with pytest.raises(BadBlock, match="it is damaged"):
        merge_blocks([Block(first.header, first.head, bytes(body)), second], compress=False)


def test_columns_that_break_the_format_are_not_merged(make_block):
    first, second = make_block([(b"a", b"1", 1, 5)]), make_block([(b"b", b"2", 2, 6)])
    lying = Block(first.header._replace(least_hash=0), first.head, first.body)
    with pytest.raises(BadBlock, match="key hashes lie"):
        merge_blocks([lying, second], compress=False)


def test_what_fits_is_told_by_headers():
    half = encode_block([b"k"] * (ROWS_MAX // 2), [b""] * (ROWS_MAX // 2), partition=0)
    one = encode_block([b"k"], [b""], partition=0)
    blocks = [half.stamped(1, 1), half.stamped(1 + ROWS_MAX // 2, 2)]
    assert fits(blocks)
    assert merge_blocks(blocks, compress=True).rows == ROWS_MAX
    blocks.append(one.stamped(1 + ROWS_MAX, 3))
    assert not fits(blocks)
    with pytest.raises(ValueError, match="65537 rows"):
        merge_blocks(blocks, compress=True)


def test_bodies_at_the_bound():
    overhead = 2 * 300
    values = [VALUE_BYTES_MAX, BODY_BYTES_MAX - VALUE_BYTES_MAX - overhead]
    blocks = [
        encode_block([b"k"], [bytes(nbytes)], partition=0).stamped(seq, seq) for seq, nbytes in enumerate(values, 1)
    ]
    assert fits(blocks)
    assert merge_blocks(blocks, compress=True).header.raw_bytes < BODY_BYTES_MAX
    blocks.append(encode_block([b"k"], [bytes(overhead)], partition=0).stamped(3, 3))
    assert not fits(blocks)
    with pytest.raises(ValueError, match="do not fit into one"):
        merge_blocks(blocks, compress=True)
