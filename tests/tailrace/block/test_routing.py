from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.block import FLAG_COMPRESSED, KEY_BYTES_MAX, VALUE_BYTES_MAX, digest_of_block, routing
from tailrace.block.routing import (
    BLOCK_BYTES,
    BLOCK_ROWS_MAX,
    BUFFERED_BYTES_MAX,
    Router,
    Trials,
    partition_of_hashes,
)
from tailrace.errors import TooLarge
from tailrace.model.hashing import HASH_MAX, key_hash, partition_begin, partition_of_hash

KEYS = st.binary(min_size=1, max_size=20)
ROWS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=40)), max_size=30)


def binary(values):
    return pa.array(values, pa.binary())


def rows_of(block):
    columns = block.columns()
    return list(zip(columns.keys(), columns.values(), strict=True))


def routed(router, batches):
    """The rows of each partition in the order of their blocks, and the blocks."""
    cuts = [c for rows in batches for c in router.add(binary([k for k, _ in rows]), binary([v for _, v in rows]))]
    cuts += router.flush()
    blocks = [cut.block for cut in cuts]
    assert [cut.digest() for cut in cuts] == [digest_of_block(block) for block in blocks]
    found = defaultdict(list)
    for block in blocks:
        found[block.header.partition] += rows_of(block)
    return dict(found), blocks


@given(st.lists(st.integers(0, HASH_MAX), max_size=20), st.integers(1, 65_537))
@example([0, HASH_MAX], 1)
@example([0, HASH_MAX], 4096)
def test_partition_of_hashes(hashes, partitions):
    found = partition_of_hashes(np.array(hashes, np.uint64), partitions)
    assert found.tolist() == [partition_of_hash(hash_, partitions) for hash_ in hashes]


@given(st.integers(1, 65_537), st.data())
def test_partition_of_hashes_at_the_borders(partitions, data):
    begin = partition_begin(data.draw(st.integers(0, partitions - 1)), partitions)
    hashes = [max(begin - 1, 0), begin, begin + 1]
    found = partition_of_hashes(np.array(hashes, np.uint64), partitions)
    assert found.tolist() == [partition_of_hash(hash_, partitions) for hash_ in hashes]


@given(
    batches=st.lists(ROWS, max_size=6),
    partitions=st.sampled_from([1, 2, 3, 16, 1000, 70_000]),
    bounds=st.tuples(st.integers(1, 200), st.integers(1, 20), st.integers(1, 300), st.integers(1, 600)),
)
def test_rows_come_to_their_partition_in_order(batches, partitions, bounds):
    wanted = defaultdict(list)
    for key, value in (row for rows in batches for row in rows):
        wanted[partition_of_hash(key_hash(key), partitions)].append((key, value))
    router = Router(partitions)
    with pytest.MonkeyPatch.context() as patch:
        for name, bound in zip(
            ("BLOCK_BYTES", "BLOCK_ROWS_MAX", "PIECE_BYTES", "BUFFERED_BYTES_MAX"), bounds, strict=True
        ):
            patch.setattr(routing, name, bound)
        found, blocks = routed(router, batches)
    assert found == wanted
    assert router.buffered_bytes == 0
    for block in blocks:
        hashes = block.columns().hashes()
        assert hashes == [key_hash(key) for key, _ in rows_of(block)]
        assert block.header.rows <= bounds[1]
        assert sum(len(k) + len(v or b"") for k, v in rows_of(block)[:-1]) < bounds[0]


def test_columns_that_are_slices():
    keys, values = binary([b"x", b"a", b"b", b"y"]), binary([b"0", None, b"2", b"3"])
    router = Router(1)
    assert list(router.add(keys[1:3], values[1:3])) == []
    [cut] = router.flush()
    assert cut.digest() == digest_of_block(cut.block)
    assert rows_of(cut.block) == [(b"a", None), (b"b", b"2")]


@pytest.mark.slow
def test_blocks_are_cut_at_about_a_mebibyte():
    rnd = random.Random(4700)
    rows = [(b"%d" % n, rnd.randbytes(rnd.choice([0, 100, 5000, 300_000]))) for n in range(1000)]
    _, blocks = routed(Router(4), [rows[start : start + 50] for start in range(0, 1000, 50)])
    sizes = [sum(len(k) + len(v) for k, v in rows_of(block)) for block in blocks]
    small = [size for size in sizes if size < BLOCK_BYTES]
    assert len(small) <= 4  # the last one of each partition
    assert max(sizes) < BLOCK_BYTES + 300_100


def test_small_rows_make_blocks_of_many_rows():
    _, blocks = routed(Router(1), [[(b"%d" % n, b"") for n in range(i, i + 10_000)] for i in range(0, 50_000, 10_000)])
    assert [block.header.rows for block in blocks] == [BLOCK_ROWS_MAX] * 3 + [50_000 - 3 * BLOCK_ROWS_MAX]


def test_a_value_that_is_larger_than_a_block_goes_alone_or_last():
    value = b"x" * 5 * 1024 * 1024
    _, blocks = routed(Router(1), [[(b"a", b""), (b"b", value), (b"c", b"")], [(b"d", value)]])
    assert [block.header.rows for block in blocks] == [2, 2]


def test_what_waits_is_bounded_where_partitions_fill_unevenly():
    """One row in each batch for a partition of its own would otherwise keep every batch in memory."""
    rnd = random.Random(4700)
    keys = {partition_of_hash(key_hash(b"%d" % n), 2): b"%d" % n for n in range(50)}
    router, most = Router(2), 0
    for _ in range(200):
        value = rnd.randbytes(1000)
        rows = [(keys[0], value)] * 999 + [(keys[1], b"")]
        list(router.add(binary([k for k, _ in rows]), binary([v for _, v in rows])))
        most = max(most, router.buffered_bytes)
    assert 10 * BLOCK_BYTES < most <= BUFFERED_BYTES_MAX + BLOCK_BYTES
    list(router.flush())
    assert router.buffered_bytes == 0


@pytest.mark.parametrize(
    ("keys", "values", "error", "text"),
    [
        ([b"a", None], [b"", b""], ValueError, "row 1 .*1 of 2 rows have a null key: give each a"),
        ([b"a", b""], [b"", b""], ValueError, "row 1 .*: 1 of 2 rows have an empty key"),
        (
            [b"a", b"k" * (KEY_BYTES_MAX + 1)],
            [b"", b""],
            TooLarge,
            "row 1: a key has 4097 bytes, at most 4096",
        ),
        ([b"a", b"b"], [b"", b"x" * (VALUE_BYTES_MAX + 1)], TooLarge, "row 1: a value has 16777217 bytes.*: key b'b'"),
    ],
)
def test_rows_that_no_feed_takes(keys, values, error, text):
    router = Router(2)
    with pytest.raises(error, match=text):
        list(router.add(binary(keys), binary(values)))
    assert list(router.flush()) == []


def tried(trials, useful, blocks):
    """Of so many blocks in a row, which ones lz4 was tried on."""
    found = []
    for number in range(blocks):
        if trials.is_due():
            trials.note(useful)
            found.append(number)
    return found


def test_what_does_not_compress_is_tried_now_and_then():
    trials = Trials()
    assert tried(trials, False, 60) == [0, 2, 6, 14, 30, 46]
    assert tried(trials, True, 10) == [2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("compresses", [False, True])
def test_blocks_are_compressed_where_it_helps(compresses):
    rnd = random.Random(4700)
    rows = [(b"%d" % n, b"x" * 4096 if compresses else rnd.randbytes(4096)) for n in range(2000)]
    _, blocks = routed(Router(1), [rows])
    assert len(blocks) > 5
    assert {bool(block.header.flags & FLAG_COMPRESSED) for block in blocks} == {compresses}
