"""The column of ttls: kept by every change of a block, checked, and absent from blocks without ttls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import FLAG_COMPRESSED, FLAG_TTLS, Block, Stamps, encode_block
from tailrace.block.arrays import arrays_of, encode_arrays, join_arrays, join_blocks, reorder, take
from tailrace.block.check import check_plainly, check_with_numpy
from tailrace.block.filtering import filter_block
from tailrace.block.header import EXPIRED, TTL_S_MAX, BlockHeader
from tailrace.block.layout import read_layout
from tailrace.block.lazy import numpy_or_none
from tailrace.block.to_arrow import batch_schema
from tailrace.consuming.events import Mutations
from tailrace.errors import BadBlock
from tailrace.wire.filters import StreamFilter

np = numpy_or_none()


@st.composite
def rows(draw, most=60):
    """Rows (key, value, ttl): None deletes, by an expiry if its ttl is 1."""
    found = draw(st.lists(st.tuples(st.booleans(), st.sampled_from([0, 1, 60, TTL_S_MAX])), min_size=1, max_size=most))
    return [
        (b"key %d" % number, b"v" * (number % 5) if is_put else None, ttl if is_put else min(ttl, EXPIRED))
        for number, (is_put, ttl) in enumerate(found)
    ]


def block_of(rows, first_seq=1, *, compress=False):
    keys, values, ttls = zip(*rows, strict=True)
    seqs = range(first_seq, first_seq + len(rows))
    stamps = Stamps(list(seqs), [10 + seq // 3 for seq in seqs])
    return encode_block(keys, values, partition=1, stamps=stamps, ttls=ttls, compress=compress)


def rows_of(block):
    columns = Block.parse(block.tobytes()).columns()
    return list(zip(columns.keys(), columns.values(), columns.ttls(), strict=True))


@given(rows(), st.booleans())
def test_a_block_has_the_ttls_it_was_made_of(rows, compress):
    block = block_of(rows, compress=compress)
    assert rows_of(block) == rows
    assert bool(block.header.flags & FLAG_TTLS) == any(ttl for _, _, ttl in rows)
    assert block.columns().expired() == [value is None and ttl == EXPIRED for _, value, ttl in rows]
    compresses = bool(block.header.flags & FLAG_COMPRESSED)
    assert encode_arrays(arrays_of(block), 1, compress=compresses) == block


@given(rows(), st.lists(st.sampled_from(batch_schema().names)), st.booleans(), st.booleans())
def test_some_columns_are_those_of_the_whole_batch(rows, names, stamped, keys_only):
    """Whatever columns a block has: its seqs and timestamps, tombstones, and ttls."""
    keys, values, ttls = zip(*rows, strict=True)
    whole = block_of(rows) if stamped else encode_block(keys, values, partition=1, ttls=ttls).stamped(7, 9)
    columns = whole.columns()
    part, batch = columns.to_arrow(tuple(names), keys_only=keys_only), columns.to_arrow(keys_only=keys_only)
    part.validate(full=True)
    assert (part.schema.names, part.num_rows) == (names, len(rows))
    assert [part.column(at) for at in range(len(names))] == [batch.column(name) for name in names]


def test_a_column_that_there_is_not():
    with pytest.raises(ValueError, match="no column is named 'city'; the columns are partition, seq, key, value,"):
        block_of([(b"k", b"v", 0)]).columns().to_arrow(("key", "city"))


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=9)), min_size=1, max_size=9))
def test_a_block_without_ttls_is_as_it_was_before_there_were_any(rows):
    keys, values = zip(*rows, strict=True)
    block = encode_block(keys, values, partition=1)
    assert encode_block(keys, values, partition=1, ttls=[0] * len(keys)).tobytes() == block.tobytes()
    assert block.head[4:6] == b"\1\0"


@given(rows(), rows(), st.data())
def test_blocks_are_joined_and_rows_taken_with_their_ttls(first, second, data):
    blocks = [block_of(first), block_of(second, 1 + len(first))]
    joined = join_blocks(blocks)
    both = first + second
    assert rows_of(encode_arrays(joined, 1, compress=False)) == both
    assert rows_of(encode_arrays(join_arrays([arrays_of(block) for block in blocks]), 1, compress=False)) == both
    start = data.draw(st.integers(0, len(both) - 1))
    picked = sorted(data.draw(st.sets(st.integers(0, len(both) - 1), min_size=1)))
    assert rows_of(encode_arrays(take(joined, slice(start, None)), 1, compress=False)) == both[start:]
    assert rows_of(encode_arrays(take(joined, np.array(picked)), 1, compress=False)) == [both[row] for row in picked]
    order = np.array(data.draw(st.permutations(range(len(both)))))
    assert rows_of(encode_arrays(reorder(joined, order), 1, compress=False)) == [both[row] for row in order]


@pytest.mark.parametrize("count", [1, 4, 50])
@pytest.mark.parametrize("keys_only", [False, True])
def test_a_filter_leaves_the_ttls_of_its_rows(count, keys_only):
    rows = [(b"ab"[n % 2 :][:1] + b"%d" % n, b"v", 60 + n) for n in range(count)]
    block = filter_block(block_of(rows), StreamFilter(b"a", keys_only))
    value = b"" if keys_only else b"v"
    assert rows_of(block) == [(key, value, ttl) for key, _, ttl in rows if key.startswith(b"a")]


def test_mutations_tell_which_deletions_are_expiries():
    event = Mutations(block_of([(b"a", b"1", 60), (b"b", None, 0), (b"c", None, EXPIRED)]))
    assert [(m.key, m.deleted, m.expired) for m in event] == [
        (b"a", False, False),
        (b"b", True, False),
        (b"c", True, True),
    ]
    assert list(event.one_by_one()) == list(event)
    assert event.split(1)[1].expired() == [False, True]


@pytest.mark.parametrize("rows_before", [0, 60], ids=["plainly", "by numpy"])
@pytest.mark.parametrize(
    ("ttls", "message"),
    [
        ([0, 0], "promise ttls, all of them are 0"),
        ([TTL_S_MAX + 1, 0], f"a ttl is {TTL_S_MAX + 1} s, at most {TTL_S_MAX}"),
        ([5, 2], "a tombstone has the ttl 2, only 0 and 1"),
    ],
)
def test_a_wrong_column_is_refused(ttls, message, rows_before):
    good = block_of([(b"k%d" % n, b"v", 7) for n in range(rows_before)] + [(b"a", b"1", 7), (b"b", None, EXPIRED)])
    layout = read_layout(good.header, memoryview(good.body))
    body = bytearray(good.body)
    column = [0 if "all of them" in message else 7] * rows_before + ttls
    body[layout.ttls] = np.array(column, "<u4").tobytes()
    for check in (check_plainly, lambda *parts: check_with_numpy(np, *parts)):
        check(good.header, layout, memoryview(good.body))
        with pytest.raises(BadBlock, match=message):
            check(good.header, layout, memoryview(body))


@pytest.mark.parametrize("ttls", [[-1, 0], [TTL_S_MAX + 1, 0]])
def test_a_ttl_out_of_bounds_makes_no_block(ttls):
    with pytest.raises(ValueError, match="ttl"):
        encode_block([b"a", b"b"], [b"1", b"2"], partition=1, ttls=ttls)


def test_the_version_and_the_flag_say_the_same():
    head = block_of([(b"a", b"1", 7)]).head
    header = BlockHeader.unpack(head)
    assert head[4:6] == b"\2\0"
    assert BlockHeader.unpack(header.pack()) == header
    without = header._replace(flags=0).pack()
    assert without[4:6] == b"\1\0"
