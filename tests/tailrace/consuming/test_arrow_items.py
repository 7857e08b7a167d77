from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import Stamps, encode_block
from tailrace.block.to_arrow import batch_schema
from tailrace.consuming import arrow_items
from tailrace.consuming.arrow_items import ArrowLatest, joined
from tailrace.consuming.events import Mutations

ROWS = st.lists(st.tuples(st.sampled_from([b"a", b"bb", b"cc", b"d" * 20]), st.none() | st.binary(max_size=9)))


def mutations(rows, first_seq, hashes=None):
    """Mutations with these rows, cut out of a block that has one more on each side."""
    keys, values = zip(*[(b"x", b"y"), *rows, (b"x", b"y")], strict=True)
    seqs = range(first_seq - 1, first_seq + len(rows) + 1)
    block = encode_block(
        keys, values, partition=3, stamps=Stamps(seqs, [seq * 10 for seq in seqs]), hashes=hashes and [0, *hashes, 0]
    )
    return Mutations(block, 1, stop_row=len(rows) + 1)


def expected(rows, first_seq=2):
    latest = {}
    for seq, (key, value) in enumerate(rows, first_seq):
        latest.pop(key, None)
        if value is not None:
            latest[key] = (seq, value)
    return [(seq, key, value) for key, (seq, value) in latest.items()]


def rows_of(table):
    columns = [table[name].to_pylist() for name in ("seq", "key", "value")]
    return list(zip(*columns, strict=True))


@given(ROWS, st.integers(1, 5), st.integers(1, 8))
def test_the_newest_row_of_each_key_is_left(rows, together, rows_min):
    latest = ArrowLatest(rows_min)
    for start in range(0, len(rows), together):
        latest.note(mutations(rows[start : start + together], 2 + start))
    table = latest.take()
    assert table.schema == batch_schema()
    assert rows_of(table) == expected(rows)
    assert table["partition"].to_pylist() == [3] * len(table)
    assert table["deleted"].to_pylist() == [False] * len(table)
    assert latest.take().num_rows == 0


@given(ROWS)
def test_keys_of_one_hash_are_told_apart(rows):
    latest = ArrowLatest()
    if rows:
        latest.note(mutations(rows, 2, hashes=[7] * len(rows)))
    assert rows_of(latest.take()) == expected(rows)


def test_superseded_rows_do_not_pile_up():
    latest = ArrowLatest(rows_min=10)
    for number in range(100):
        latest.note(mutations([(b"k", b"%d" % number)], 2 + number))
        assert sum(batch.num_rows for batch in latest._batches) <= 11
    assert rows_of(latest.take()) == [(101, b"k", b"99")]


def test_a_partition_that_comes_again():
    latest = ArrowLatest()
    latest.note(mutations([(b"a", b"1")], 2))
    latest.clear()
    latest.note(mutations([(b"b", b"2")], 2))
    assert rows_of(latest.take()) == [(2, b"b", b"2")]


@pytest.mark.parametrize(("rows", "chunks"), [(10, 1), (arrow_items.CHUNK_ROWS_MIN, 2)])
def test_small_chunks_are_joined(rows, chunks):
    part = pa.Table.from_batches([mutations([(b"k", b"v")] * rows, 2).to_arrow()])
    table = joined([part, part])
    assert table.num_rows == 2 * rows
    assert table["key"].num_chunks == chunks


def test_no_partitions():
    assert joined([]).schema == batch_schema()
