"""Arrow columns give an index what lists give it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.block import encode_block
from tailrace.block.encode import Stamps
from tailrace.consuming.events import Mutations
from tailrace.indexes import AppliedMutation, AppliedMutations, MemoryIndex
from tailrace.indexes.applier import Applier, IndexBatch
from tailrace.testing.index_calls import checkpoint_at

pytest.importorskip("pyarrow")
from tailrace.indexes.arrow_mutations import COLUMNS, ArrowMutations

ROWS = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"cc", b"dd", b"e" * 40]), st.none() | st.binary(max_size=3)),
    min_size=1,
    max_size=8,
)


@st.composite
def events(draw):
    """Events of three partitions, whose seqs rise unless they were read again."""
    made, next_seq = [], [1, 1, 1]
    for partition, rows in draw(st.lists(st.tuples(st.integers(0, 2), ROWS), max_size=5)):
        first = next_seq[partition]
        seqs = [first + 2 * number for number in range(len(rows))]
        next_seq[partition] = draw(st.sampled_from([seqs[-1] + 1, 1]))
        keys, values = zip(*rows, strict=True)
        stamps = Stamps(seqs, [1_000_000 + seq for seq in seqs])
        block = encode_block(list(keys), list(values), partition=partition, stamps=stamps)
        made.append(Mutations(block, draw(st.integers(0, len(rows) - 1))))
    return made


@settings(max_examples=examples(200))
@given(events(), st.lists(st.integers(0, 30), min_size=3, max_size=3))
def test_they_equal_the_lists(given, floors):
    lists, arrow = AppliedMutations.of_events(list(given)), ArrowMutations.of_events(list(given))
    assert list(arrow) == list(lists)
    assert len(arrow) == len(lists)
    assert list(arrow.upserts()) == list(lists.upserts())
    assert list(arrow.deletions()) == list(lists.deletions())
    assert arrow.seq_bounds() == lists.seq_bounds()
    by_partition = dict(enumerate(floors))
    of_lists, of_arrow = lists.ring_changes(by_partition), arrow.ring_changes(by_partition)
    assert list(of_arrow) == list(of_lists)
    for partition, change in of_arrow.items():
        assert change.floor_seq == of_lists[partition].floor_seq
        assert entries(change) == entries(of_lists[partition])


@settings(max_examples=examples(50))
@given(events())
def test_a_table_of_any_rows(given):
    of_events, lists = ArrowMutations.of_events(list(given)), AppliedMutations.of_events(given)
    made = ArrowMutations.of(list(lists))
    assert sorted(made) == sorted(lists)
    assert made.table.column_names == COLUMNS
    assert not lists or of_events.table.schema == made.table.schema
    assert ArrowMutations.of(made) is made
    assert [row["key"] for row in made.by_key({}, made.table.schema).to_pylist()] == sorted(lists.keys)


@pytest.mark.parametrize(("seq", "timestamp"), [(1 << 63, 1), (1, 1 << 63)])
def test_a_number_of_64_bits_is_refused(seq, timestamp):
    with pytest.raises(ValueError, match="a seq or a timestamp has more than 63 bits"):
        ArrowMutations.of([AppliedMutation(0, b"k", b"v", seq, timestamp)])


def entries(change):
    return sorted(entry for chunk in change.chunks for entry in chunk.entries())


def test_an_index_that_takes_arrow_gets_a_table():
    class Store(MemoryIndex):
        takes_arrow = True

        def apply(self, mutations, checkpoint):
            self.table = ArrowMutations.of(mutations).table
            super().apply(mutations, checkpoint)

    index = Store()
    event = Mutations(encode_block([b"b", b"a", b"b"], [b"1", b"2", b"3"], partition=0).stamped(1, 5))
    Applier(index).apply(IndexBatch([event], checkpoint_at({0: 3}).positions, {0: 0}))
    assert index.table.select(["seq", "key", "value"]).to_pylist() == [
        {"seq": 2, "key": b"a", "value": b"2"},
        {"seq": 3, "key": b"b", "value": b"3"},
    ]
    assert index.state == {b"a": b"2", b"b": b"3"}


def test_the_list_of_events_is_emptied():
    given = [Mutations(encode_block([b"a"], [b"1"], partition=0).stamped(1, 5))]
    assert isinstance(ArrowMutations.of_events(given), ArrowMutations)
    assert given == []


def test_a_timestamp_of_64_bits_goes_to_the_index_as_it_is():
    given = [Mutations(encode_block([b"a"], [b"1"], partition=0).stamped(1, 1 << 63))]
    assert list(ArrowMutations.of_events(given).timestamps) == [1 << 63]
