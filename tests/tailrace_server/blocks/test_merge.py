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
from tailrace_server.blocks import fits, heads_of, join_blocks, merge_blocks, merge_steps
from tailrace_server.blocks.merge import CHECKED_BLOCKS, SMALL_BYTES_MAX, SMALL_STEP_BLOCKS, STEP_BLOCKS, TOGETHER_MIN
from tailrace_server.blocks.small import join_small


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
    value = b"v" * (SMALL_BYTES_MAX + 1)
    blocks = [make_block([(b"k%d" % seq, value, seq, 5)]) for seq in range(1, 2 * STEP_BLOCKS + 2)]
    steps = list(merge_steps(blocks, compress=False))
    assert steps[:-1] == [None] * (1 + 3)
    assert steps[-1] == merge_blocks(blocks, compress=False)
    small = [make_block([(b"k%d" % seq, b"v", seq, 5)]) for seq in range(1, 2 * SMALL_STEP_BLOCKS + TOGETHER_MIN)]
    steps = list(merge_steps(small, compress=False))
    together = SMALL_STEP_BLOCKS // CHECKED_BLOCKS + 5  # the sums, the bytes, the columns
    assert steps[:-1] == [None] * (1 + 2 * together + -(-(TOGETHER_MIN - 1) // STEP_BLOCKS))
    assert steps[-1] == merge_blocks(small, compress=False)


# Small blocks, opened together


def joined(blocks):
    """What all steps of `join_small` come to."""
    steps = join_small(blocks, heads_of(blocks))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


SMALL_ROW = st.tuples(st.binary(min_size=1, max_size=20), st.none() | st.binary(max_size=40))


@given(st.lists(st.lists(SMALL_ROW, min_size=1, max_size=5), min_size=1, max_size=6), st.data())
def test_blocks_that_are_opened_together_are_those_that_are_opened_one_by_one(parts, data):
    blocks, seq, stamp = [], 1, 1000
    for part in parts:
        producer = data.draw(st.integers(0, 1))
        block = encode_block(*zip(*part, strict=True), partition=3, producer_id=producer, producer_seq=producer)
        stamp += data.draw(st.integers(0, 2))
        blocks.append(block.stamped(seq, stamp))
        seq += len(part) + data.draw(st.integers(0, 1))
    if data.draw(st.booleans()) and fits(blocks[:2]):
        blocks[:2] = [merge_blocks(blocks[:2], compress=False)]
    found = joined(blocks)
    if any(block.header.flags & FLAG_SEQS for block in blocks):
        assert found is None
        return
    for one, other in zip(found, join_blocks(blocks), strict=True):
        assert (one is None) is (other is None)
        assert one is None or (one.dtype, one.tolist()) == (other.dtype, other.tolist())


@given(st.data())
def test_of_a_damaged_block_the_result_is_the_same_or_none(data):
    rows = data.draw(st.lists(SMALL_ROW, min_size=1, max_size=3))
    block = encode_block(*zip(*rows, strict=True), partition=3).stamped(5, 1000)
    body = bytearray(block.body)
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    broken = Block(block.header, block.head, bytes(body))
    try:
        expected = join_blocks([broken])
    except BadBlock:
        expected = None
    found = joined([broken])
    if expected is not None:
        assert [None if each is None else each.tolist() for each in found] == [
            None if each is None else each.tolist() for each in expected
        ]


def test_a_hash_outside_of_the_bounds_in_the_header_is_found():
    blocks = [encode_block([b"a", b"b"], [b"1", b"2"], partition=3).stamped(seq, 1000) for seq in (1, 3)]
    assert joined(blocks) is not None
    for place in (0, 8):
        body = bytearray(blocks[1].body)
        body[place] ^= 1
        broken = [blocks[0], Block(blocks[1].header, blocks[1].head, bytes(body))]
        assert joined(broken) is None


def test_small_blocks_that_cannot_be_opened_together_are_opened_one_by_one(make_block, read_rows):
    rows = [(b"k%d" % seq, b"v" * 300, 2 * seq, 1000 + seq) for seq in range(1, TOGETHER_MIN + 1)]
    singles = [make_block([row], compress=row[2] == 8) for row in rows]
    assert any(block.header.flags & FLAG_COMPRESSED for block in singles)
    assert read_rows(merge_blocks(singles, compress=False)) == rows


def test_a_small_body_that_was_damaged_in_memory_is_not_merged(make_block):
    blocks = [make_block([(b"k%d" % seq, b"v" * 30, seq, 5)]) for seq in range(1, TOGETHER_MIN + 1)]
    body = bytearray(blocks[7].body)
    body[-1] ^= 1
    blocks[7] = Block(blocks[7].header, blocks[7].head, bytes(body))
    with pytest.raises(BadBlock, match="it is damaged"):
        merge_blocks(blocks, compress=False)


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
