from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.segment.block_index import ENTRY_BYTES, BlockIndex
from tailrace.segment.errors import SegmentFormatError

# offset, first seq, last seq, bytes, rows
GOOD = [(64, 1, 5, 200, 5), (264, 6, 9, 150, 2), (414, 12, 12, 120, 1)]
U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


def check(entries, identity_of, **members):
    rows = sum(entry[4] for entry in entries)
    BlockIndex.of(entries).check(64, identity_of(**({"last_seq": 12, "rows": rows} | members)))


@given(st.lists(st.tuples(U64, U64, U64, U32, U32), max_size=10))
def test_what_is_packed_is_read(entries):
    data = BlockIndex.of(entries).pack()
    assert len(data) == ENTRY_BYTES * len(entries)
    index = BlockIndex.unpack(data)
    assert [*zip(*(column.tolist() for column in index), strict=True)] == entries


def test_a_good_index(identity_of):
    check(GOOD, identity_of)
    check([], identity_of)
    index = BlockIndex.of(GOOD)
    assert index.places(64).tolist() == [64, 264, 414, 534]
    assert index.row_begins.tolist() == [0, 5, 7, 8]
    empty = BlockIndex.of([])
    assert (empty.places(64).tolist(), empty.row_begins.tolist()) == ([64], [0])


@pytest.mark.parametrize(
    ("block", "entry", "why"),
    [
        (0, (72, 1, 5, 192, 5), "block 0 of 3 in the block index does not begin at the end of the one before it"),
        (1, (272, 6, 9, 142, 2), "block 1 of 3 in the block index does not begin at the end"),
        (2, (414, 12, 12, 96, 1), "block 2 of 3 in the block index has a length that can't be"),
        (2, (414, 12, 12, 2**31, 1), "block 2 of 3 in the block index has a length that can't be"),
        (1, (264, 6, 9, 150, 0), "has a count of rows that can't be"),
        (1, (264, 6, 9, 150, 65_537), "has a count of rows that can't be"),
        (0, (64, 0, 5, 200, 5), "begins at seq 0"),
        (1, (264, 9, 6, 150, 2), "ends at a lower seq than it begins at"),
        (1, (264, 6, 9, 150, 5), "has more rows than seqs"),
        (1, (264, 5, 9, 150, 2), "block 1 of 3 in the block index begins at a seq that is not above"),
        (2, (414, 12, 13, 120, 1), "ends above the segment's last seq"),
    ],
)
def test_what_cannot_be_is_refused(identity_of, block, entry, why):
    entries = list(GOOD)
    entries[block] = entry
    with pytest.raises(SegmentFormatError, match=why):
        check(entries, identity_of)


def test_it_has_to_fit_the_identity(identity_of):
    with pytest.raises(SegmentFormatError, match="block 0 of 3 in the block index begins at a seq that is not above"):
        check(GOOD, identity_of, after_seq=1)
    with pytest.raises(SegmentFormatError, match="the blocks have 8 rows, the identity says 7"):
        check(GOOD, identity_of, rows=7)


def test_a_block_has_to_be_the_one_of_its_entry(block_of):
    block = block_of([(b"a", b"1", 6, 10), (b"b", b"2", 9, 10)])
    index = BlockIndex.of([GOOD[0], (264, 6, 9, block.nbytes, 2)])
    index.check_block(1, block, 3)
    with pytest.raises(SegmentFormatError, match=r"says .* of block 0"):
        index.check_block(0, block, 3)
    with pytest.raises(SegmentFormatError, match="partition of this block"):
        index.check_block(1, block, 4)
