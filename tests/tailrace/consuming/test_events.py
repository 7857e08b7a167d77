from __future__ import annotations

import datetime

import pytest

from tailrace.block import FLAG_SEQS, Block, encode_block
from tailrace.block.encode import Stamps
from tailrace.block.header import EXPIRED
from tailrace.consuming.events import Mutations
from tailrace.errors import BadBlock
from tailrace.model import Mutation, Version

KEYS = [b"a", b"b", b"c", b"d"]
VALUES = [b"1", None, b"3", b""]
BLOCK = encode_block(KEYS, VALUES, partition=4).stamped(10, 1_700_000_000_000_001)
SPARSE = encode_block(KEYS, VALUES, partition=4, stamps=Stamps([3, 5, 9, 11], [1, 1, 2, 7]))


def test_rows():
    event = Mutations(BLOCK, branch=b"b" * 16)
    assert (event.partition, event.first_seq, event.last_seq, len(event)) == (4, 10, 13, 4)
    assert event.block is BLOCK
    assert (event.branch, event.refetched) == (b"b" * 16, False)
    rows = list(event)
    assert rows[1] == Mutation(b"b", None, 11, 1_700_000_000_000_001, True)
    assert rows[3] == Mutation(b"d", b"", 13, 1_700_000_000_000_001, False)
    assert all(isinstance(row, Mutation) for row in rows)
    assert rows[1].version == Version(4, b"b" * 16, 11)
    assert list(event.one_by_one())[1].version == rows[1].version
    assert list(event) == rows


def test_rows_without_deletions():
    event = Mutations(encode_block(KEYS, [b"v"] * 4, partition=0).stamped(1, 5))
    assert list(event) == [Mutation(key, b"v", seq, 5, False) for seq, key in enumerate(KEYS, 1)]


def test_columns():
    event = Mutations(SPARSE)
    assert event.keys() == KEYS
    assert event.values() == VALUES
    assert list(event.seqs()) == [3, 5, 9, 11]
    assert list(event.timestamps()) == [1, 1, 2, 7]
    assert event.hashes() == SPARSE.columns().hashes()


@pytest.mark.parametrize("block", [BLOCK, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("first_row", range(4))
def test_first_rows_are_left_out(block, first_row):
    whole, event = Mutations(block), Mutations(block, first_row, refetched=True)
    assert event.refetched
    assert len(event) == 4 - first_row
    assert list(event) == list(whole)[first_row:]
    assert event.hashes() == whole.hashes()[first_row:]
    assert event.first_seq == next(iter(event)).seq
    assert event.last_seq == list(event)[-1].seq
    assert event.to_arrow().to_pylist() == whole.to_arrow().to_pylist()[first_row:]


def test_rows_above_a_seq():
    for seq in range(14):
        event = Mutations.above(SPARSE, seq, branch=b"x")
        expected = [row for row in Mutations(SPARSE) if row.seq > seq]
        assert (list(event) if event else []) == expected
        assert event is None or event.branch == b"x"
    assert Mutations.above(BLOCK, 13) is None


@pytest.mark.parametrize("first_row", [-1, 4, 5])
def test_a_row_that_is_not_there_is_refused(first_row):
    with pytest.raises(ValueError, match="but the block has rows 0 to 3"):
        Mutations(BLOCK, first_row)


def test_a_broken_block_is_refused_at_once():
    header = SPARSE.header._replace(last_seq=12)
    assert header.flags & FLAG_SEQS
    with pytest.raises(BadBlock, match="seqs"):
        Mutations(Block.parse(header.pack() + SPARSE.body))


@pytest.mark.parametrize("block", [BLOCK, SPARSE], ids=["dense", "sparse"])
def test_arrow(block):
    pa = pytest.importorskip("pyarrow")
    batch = Mutations(block).to_arrow()
    batch.validate(full=True)
    assert batch.schema == pa.schema(
        {
            "partition": pa.int32(),
            "seq": pa.int64(),
            "key": pa.binary(),
            "value": pa.binary(),
            "deleted": pa.bool_(),
            "timestamp": pa.timestamp("us", "UTC"),
            "expired": pa.bool_(),
        }
    )
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert batch.to_pylist() == [
        {
            "partition": 4,
            "seq": row.seq,
            "key": row.key,
            "value": row.value,
            "deleted": row.deleted,
            "timestamp": epoch + datetime.timedelta(microseconds=row.timestamp),
            "expired": row.expired,
        }
        for row in Mutations(block)
    ]


@pytest.mark.parametrize("keys_only", [False, True])
def test_arrow_tells_expiries_from_other_deletions_and_from_puts_of_a_second(keys_only):
    pytest.importorskip("pyarrow")
    values, ttls = [b"1", None, None, b"1"], [1, EXPIRED, 0, 60]
    block = encode_block(KEYS, values, partition=4, ttls=ttls).stamped(1, 5)
    batch = block.columns().to_arrow(keys_only=keys_only)
    assert batch["expired"].to_pylist() == [False, True, False, False]
    assert batch["deleted"].to_pylist() == [False, True, True, False]


def test_arrow_before_the_server_gave_seqs():
    assert encode_block(KEYS, VALUES, partition=4).columns().to_arrow()["seq"].to_pylist() == [0] * 4


def test_repr():
    assert repr(Mutations(BLOCK, 1)) == "<Mutations of partition 4: seqs 11 to 13, 3 rows>"


@pytest.mark.parametrize("block", [BLOCK, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("first_row", range(4))
def test_without_values_deletions_are_still_told(block, first_row):
    whole, event = Mutations(block, first_row), Mutations(block, first_row, keys_only=True)
    assert event.values() == [None] * (4 - first_row)
    assert event.deleted() == whole.deleted() == [value is None for value in VALUES[first_row:]]
    assert list(event) == [row._replace(value=None) for row in whole]
    expected = [{**row, "value": None} for row in whole.to_arrow().to_pylist()]
    assert event.to_arrow().to_pylist() == expected
    assert event.to_arrow().schema == whole.to_arrow().schema


def test_rows_between_two_times():
    keys = [b"%d" % number for number in range(6)]
    stamps = Stamps([1, 2, 4, 5, 8, 9], [10, 20, 20, 30, 40, 50])
    event = Mutations(encode_block(keys, [b"v"] * 6, partition=3, stamps=stamps), branch=b"u" * 16, refetched=True)
    assert event.stamped_since(10) is event
    assert event.stamped_before(51) is event
    assert event.stamped_since(51) is event.stamped_before(10) is None
    for cut in (event.stamped_since(20).stamped_before(40), event.stamped_before(40).stamped_since(20)):
        assert (cut.first_seq, cut.last_seq, len(cut)) == (2, 5, 3)
        assert (cut.keys(), list(cut.seqs()), list(cut.timestamps())) == ([b"1", b"2", b"3"], [2, 4, 5], [20, 20, 30])
        assert [mutation.seq for mutation in cut] == [2, 4, 5]
        assert cut.to_arrow().column("seq").to_pylist() == [2, 4, 5]
        assert cut.to_arrow(["seq"]).to_pydict() == {"seq": [2, 4, 5]}
        assert cut.to_arrow([]).num_rows == 3
        assert (cut.branch, cut.refetched) == (b"u" * 16, True)
        assert cut.stamped_since(31) is cut.stamped_before(20) is None
    uniform = Mutations(encode_block([b"a", b"b"], [b"v"] * 2, partition=0).stamped(1, 10))
    assert uniform.stamped_since(10) is uniform.stamped_before(11) is uniform
    assert uniform.stamped_since(11) is uniform.stamped_before(10) is None


@pytest.mark.parametrize(("first_row", "stop_row"), [(0, 0), (1, 1), (0, 3), (1, -1)])
def test_rows_up_to_one_that_is_not_there(first_row, stop_row):
    block = encode_block([b"a", b"b"], [b"v"] * 2, partition=0).stamped(1, 10)
    with pytest.raises(ValueError, match="stop_row is"):
        Mutations(block, first_row, stop_row=stop_row)


@pytest.mark.parametrize("keys_only", [False, True])
@pytest.mark.parametrize(("first_row", "stop_row"), [(0, None), (1, None), (0, 2), (1, 2)])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_one_by_one_are_those_of_the_iteration(rows, first_row, stop_row, keys_only):
    keys, values = [b"a", b"bb", b"c"], [b"1", None, b""]
    first_row = min(first_row, rows - 1)
    stop_row = None if rows == 1 else stop_row
    block = encode_block(keys[:rows], values[:rows], partition=2).stamped(1, 5)
    event = Mutations(block, first_row, stop_row=stop_row, keys_only=keys_only)
    assert list(event.one_by_one()) == list(event)
