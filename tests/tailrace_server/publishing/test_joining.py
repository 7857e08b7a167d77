from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import encode_block
from tailrace_server.publishing import joining
from tailrace_server.publishing.joining import joined


def rows_of(blocks):
    return [row for block in blocks for row in zip(block.columns().keys(), block.columns().values(), strict=True)]


@given(st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=400)), min_size=1, max_size=5), max_size=8))
def test_rows_and_their_order_stay(values):
    blocks = [
        encode_block([b"%d-%d" % (n, row) for row in range(len(part))], part, partition=3)
        for n, part in enumerate(values)
    ]
    found = joined(blocks)
    assert rows_of(found) == rows_of(blocks)
    assert len(found) <= 1
    for block in found:  # they are stamped as any producer's
        assert block.stamped(7, 9).seqs == (7, 6 + block.rows)


def test_large_ones_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(joining, "JOINED_BYTES_MAX", 150)
    blocks = [encode_block([b"k"], [bytes(size)], partition=0) for size in (10, 10, 100, 10)]
    found = joined(blocks)
    assert [block.rows for block in found] == [2, 1, 1]
    assert found[1] is blocks[2]
    assert rows_of(found) == rows_of(blocks)


def test_what_lz4_saves_of_some_blocks_only_is_not_lost_by_joining():
    """One record has to have them: what is joined has no more bytes than what was staged."""
    randbytes = random.Random(1).randbytes
    values = [[randbytes(760 if number % 2 else 1_000).ljust(1_000, b"-") for _ in range(50)] for number in range(8)]
    blocks = [
        encode_block([b"%d-%d" % (number, row) for row in range(50)], found, partition=0, compress=True)
        for number, found in enumerate(values)
    ]
    found = joined(blocks)
    assert rows_of(found) == rows_of(blocks)
    assert sum(block.nbytes for block in found) <= sum(block.nbytes for block in blocks)
