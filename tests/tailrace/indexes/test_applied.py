"""The columns that an index is given."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.consuming.ring import RingChange, RingChunk
from tailrace.indexes import AppliedMutation, AppliedMutations
from tailrace.testing.index_calls import mutation

ROWS = st.lists(
    st.builds(
        AppliedMutation,
        st.integers(0, 2),
        st.sampled_from([b"a", b"b", b"c", b"d"]),
        st.none() | st.binary(max_size=3),
        st.integers(1, 50),
        st.integers(0, 9),
    ),
    max_size=12,
)


@settings(max_examples=examples(100))
@given(ROWS)
def test_of_each_key_the_last_mutation_counts(rows):
    made = AppliedMutations.of(iter(rows))
    assert sorted(made) == sorted({row.key: row for row in rows}.values())
    assert AppliedMutations.of(made) is made


@settings(max_examples=examples(100))
@given(ROWS)
def test_upserts_and_deletions_are_all_rows(rows):
    made = AppliedMutations.of(rows)
    assert list(made.upserts()) == [row for row in made if row.value is not None]
    assert list(made.deletions()) == [row for row in made if row.value is None]


@settings(max_examples=examples(100))
@given(ROWS, st.lists(st.integers(0, 60), min_size=3, max_size=3))
def test_rings_get_the_entries_above_their_floors_by_rising_seq(rows, floors):
    made = AppliedMutations.of(rows)
    changes = made.ring_changes(dict(enumerate(floors)))
    assert list(changes) == [0, 1, 2]
    for partition, floor_seq in enumerate(floors):
        entries = sorted((row.seq, row.key) for row in made if row.partition == partition and row.seq > floor_seq)
        chunks = (RingChunk.of([seq for seq, _ in entries], [key for _, key in entries]),) if entries else ()
        assert changes[partition] == RingChange(floor_seq, None, chunks)


def test_it_is_a_sequence_of_mutations():
    a, b = mutation(b"a", "one", 1), mutation(b"b", None, 2, partition=3)
    made = AppliedMutations.of([a, b])
    assert (len(made), made[0], made[-1], list(made[1:]), b in made) == (2, a, b, [b], True)
    assert made.keys == (b"a", b"b")
    with pytest.raises(IndexError):
        made[2]
