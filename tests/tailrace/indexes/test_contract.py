"""What every index has to do, on each of them."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.consuming.ring import RingChange, RingChunk
from tailrace.errors import BadPosition
from tailrace.indexes import AppliedMutation, Index
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, FailoverLog
from tailrace.model.position import Position


def held(mutation):
    return (mutation.value, mutation.partition, mutation.seq, mutation.timestamp)


def test_it_is_an_index(harness):
    assert isinstance(harness.index, Index)


def test_a_new_one_holds_nothing(harness):
    assert harness.reopen() is None
    assert harness.rows() == {}


def test_what_was_applied_is_there_with_its_checkpoint(harness, make_checkpoint, put):
    a, b = put(b"a", "one", 1), put(b"b", "two", 1, partition=3)
    harness.index.apply([a, b], make_checkpoint({0: 1, 3: 1}))
    assert harness.rows() == {b"a": held(a), b"b": held(b)}
    assert harness.reopen() == make_checkpoint({0: 1, 3: 1})
    assert harness.rows() == {b"a": held(a), b"b": held(b)}


def test_a_later_value_replaces_an_earlier_one(harness, make_checkpoint, put):
    harness.index.apply([put(b"a", "one", 1)], make_checkpoint({0: 1}))
    second = put(b"a", "two", 2)
    harness.index.apply([second], make_checkpoint({0: 2}))
    assert harness.rows() == {b"a": held(second)}
    harness.check()


def test_a_deletion_removes_the_row(harness, make_checkpoint, put):
    harness.index.apply([put(b"a", "one", 1), put(b"b", "two", 2)], make_checkpoint({0: 2}))
    harness.index.apply([put(b"a", None, 3), put(b"never there", None, 4)], make_checkpoint({0: 4}))
    assert harness.rows().keys() == {b"b"}
    harness.check()


@pytest.mark.parametrize("text", ["older", None])
def test_what_is_older_is_passed_over(harness, make_checkpoint, put, text):
    newest = put(b"a", "newest", 5)
    harness.index.apply([newest], make_checkpoint({0: 5}))
    harness.index.apply([put(b"a", text, 4)], make_checkpoint({0: 5}))
    assert harness.rows() == {b"a": held(newest)}
    harness.check()


def test_seqs_of_different_partitions_are_not_compared(harness, make_checkpoint, put):
    """A key that has moved to a new partition counts its seqs anew."""
    harness.index.apply([put(b"a", "old", 500), put(b"b", "old", 501)], make_checkpoint({0: 501}))
    moved = put(b"a", "new", 1, partition=7)
    harness.index.apply([moved, put(b"b", None, 2, partition=7)], make_checkpoint({0: 501, 7: 2}))
    assert harness.rows() == {b"a": held(moved)}


def test_the_same_again_changes_nothing(harness, make_checkpoint, put):
    batch, checkpoint = [put(b"a", "one", 1), put(b"b", None, 2)], make_checkpoint({0: 2})
    harness.index.apply(batch, checkpoint)
    before = harness.rows()
    harness.index.apply(batch, checkpoint)
    assert harness.rows() == before
    harness.check()


def test_of_a_key_that_is_there_twice_the_last_counts(harness, make_checkpoint, put):
    last = put(b"b", "put again", 4)
    batch = [put(b"a", "put", 1), put(b"b", None, 2), put(b"a", None, 3), last]
    harness.index.apply(batch, make_checkpoint({0: 4}))
    assert harness.rows() == {b"b": held(last)}


def test_a_checkpoint_alone(harness, make_checkpoint):
    harness.index.apply([], make_checkpoint({0: 7}))
    assert harness.reopen() == make_checkpoint({0: 7})
    assert harness.rows() == {}


def test_a_checkpoint_keeps_all_of_its_positions(harness, make_checkpoint):
    log = FailoverLog([(b"v" * 16, 9, 40), (b"u" * 16, 2, 0)])
    checkpoint = make_checkpoint(
        {0: Position.at(log, 90, 80, 100, 95), 1: Position.at(log, 5, 5, SNAPSHOT_LAST_UNKNOWN), 2: 7}
    )
    harness.index.apply([], checkpoint)
    assert harness.reopen() == checkpoint


def test_a_checkpoint_is_the_whole_truth(harness, make_checkpoint):
    harness.index.apply([], make_checkpoint({0: 7, 1: 8, 2: 9}))
    harness.index.apply([], make_checkpoint({1: 10}))
    assert harness.reopen() == make_checkpoint({1: 10})
    harness.index.apply([], make_checkpoint({}))
    assert harness.reopen() is None


def test_another_feed_is_refused(harness, make_checkpoint, put):
    a = put(b"a", "one", 1)
    harness.index.apply([a], make_checkpoint({0: 1}))
    with pytest.raises(BadPosition, match="another feed"):
        harness.index.apply([put(b"b", "x", 2)], make_checkpoint({0: 2}, feed=b"g" * 16))
    with pytest.raises(BadPosition, match="belong to cluster"):
        harness.index.apply([put(b"b", "x", 2)], make_checkpoint({0: 2}, cluster=b"d" * 16))
    assert harness.rows() == {b"a": held(a)}
    assert harness.reopen() == make_checkpoint({0: 1})


def test_dying_before_the_commit_leaves_rows_and_checkpoint_as_they_were(harness, make_checkpoint, put):
    a = put(b"a", "one", 1)
    harness.index.apply([a], make_checkpoint({0: 1}))

    def dies_half_way():
        yield put(b"a", "two", 2)
        yield put(b"b", "three", 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.index.apply(dies_half_way(), make_checkpoint({0: 3}))
    assert harness.rows() == {b"a": held(a)}
    assert harness.reopen() == make_checkpoint({0: 1})
    harness.index.apply([put(b"a", None, 2)], make_checkpoint({0: 3}))
    assert harness.rows() == {}


def test_clear_forgets_one_partition(harness, make_checkpoint, put):
    kept = put(b"c", "three", 1, partition=1)
    harness.index.apply([put(b"a", "one", 1), put(b"b", "two", 2), kept], make_checkpoint({0: 2, 1: 1}))
    harness.index.clear(0)
    assert harness.rows() == {b"c": held(kept)}
    assert harness.reopen() == make_checkpoint({1: 1})
    harness.check()
    again = put(b"a", "anew", 1)
    harness.index.apply([again], make_checkpoint({0: 1, 1: 1}))
    assert harness.rows() == {b"a": held(again), b"c": held(kept)}


def test_clear_of_everything_frees_the_index_for_another_feed(harness, make_checkpoint, put):
    harness.index.clear(0)
    harness.index.apply([put(b"a", "one", 1)], make_checkpoint({0: 1}))
    harness.index.clear(0)
    assert harness.reopen() is None
    harness.index.apply([], make_checkpoint({0: 3}, feed=b"g" * 16))
    assert harness.reopen() == make_checkpoint({0: 3}, feed=b"g" * 16)


def test_rollback_keeps_what_is_held_and_lets_anything_replace_what_is_above(harness, make_checkpoint, put):
    below, above, gone = put(b"a", "common", 100), put(b"b", "lost", 150), put(b"c", "lost", 151)
    other = put(b"d", "other", 150, partition=1)
    harness.index.apply([below, above, gone, other], make_checkpoint({0: 151, 1: 150}))
    assert harness.index.rollback(0, 100) is None
    assert {key: row[0] for key, row in harness.rows().items()} == {
        mutation.key: mutation.value for mutation in (below, above, gone, other)
    }
    harness.reopen()
    read_again = put(b"b", "from before", 90)
    older = [put(b"a", "older", 99), put(b"d", "older", 149, partition=1)]
    harness.index.apply([read_again, put(b"c", None, 120), *older], make_checkpoint({0: 100, 1: 150}))
    assert harness.rows() == {b"a": held(below), b"b": held(read_again), b"d": held(other)}
    harness.check()


def test_rollback_may_be_repeated(harness, make_checkpoint, put):
    harness.index.apply([put(b"a", "one", 50), put(b"b", "two", 60)], make_checkpoint({0: 60}))
    for seq in (55, 55, 40):
        assert harness.index.rollback(0, seq) is None
    a = put(b"a", "forty", 40)
    harness.index.apply([a], make_checkpoint({0: 40}))
    assert harness.rows()[b"a"] == held(a)


def test_close_may_be_called_twice(harness):
    harness.index.close()
    harness.index.close()
    assert harness.index.open() is None


KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
TEXTS = st.none() | st.sampled_from(["alpha beta", "beta gamma", "", "gamma gamma delta"])
STEPS = st.one_of(
    st.tuples(st.just("apply"), st.lists(st.tuples(KEYS, TEXTS), max_size=5)),
    st.tuples(st.just("die"), st.lists(st.tuples(KEYS, TEXTS), min_size=1, max_size=3)),
    st.tuples(st.just("late"), KEYS, TEXTS),
    st.tuples(st.just("rollback"), st.integers(0, 3)),
    st.tuples(st.just("clear"), st.integers(0, 1)),
    st.tuples(st.just("reopen")),
)


class Model:
    """A plain dict beside the index: {key: mutation}. Every key has one of two partitions."""

    def __init__(self, harness, put, make_checkpoint):
        self.harness, self.put, self.make_checkpoint = harness, put, make_checkpoint
        self.rows, self.seqs, self.checkpoint = {}, {}, None

    def next(self, key, text):
        partition = key[0] % 2
        self.seqs[partition] = self.seqs.get(partition, 0) + 1
        return self.put(key, text, self.seqs[partition], partition)

    def take(self, mutation):
        if mutation.value is None:
            self.rows.pop(mutation.key, None)
        else:
            self.rows[mutation.key] = mutation

    def apply(self, changes):
        batch = [self.next(key, text) for key, text in changes]
        self.checkpoint = self.make_checkpoint(self.seqs) if self.seqs else None
        self.harness.index.apply(batch, self.make_checkpoint(self.seqs))
        for mutation in batch:
            self.take(mutation)

    def die(self, changes):
        seqs = dict(self.seqs)

        def batch():
            yield from [self.next(key, text) for key, text in changes]
            raise InterruptedError

        with pytest.raises(InterruptedError):
            self.harness.index.apply(batch(), self.make_checkpoint({9: 9}))
        self.seqs = seqs

    def late(self, key, text):
        """Something older than what is held of the key."""
        if key in self.rows and self.rows[key].seq > 1:
            late = self.put(key, text, self.rows[key].seq - 1, key[0] % 2)
            self.harness.index.apply([late], self.make_checkpoint(self.seqs))
            self.checkpoint = self.make_checkpoint(self.seqs)

    def rollback(self, back):
        """To ``back`` seqs before the end of partition 0, where every key above gets an older value or none."""
        if 0 not in self.seqs:
            return
        target = max(0, self.seqs[0] - back)
        assert self.harness.index.rollback(0, target) is None
        above = [row for row in self.rows.values() if row.partition == 0 and row.seq > target]
        read_again = [
            row._replace(seq=1, timestamp=7) if row.key != b"b" else row._replace(value=None) for row in above
        ]
        self.seqs[0] = target
        self.checkpoint = self.make_checkpoint(self.seqs)
        self.harness.index.apply(read_again, self.checkpoint)
        for mutation in read_again:
            self.take(mutation)

    def clear(self, partition):
        self.harness.index.clear(partition)
        self.rows = {key: row for key, row in self.rows.items() if row.partition != partition}
        self.seqs.pop(partition, None)
        if self.checkpoint is not None:
            positions = self.checkpoint.positions.without(partition)
            self.checkpoint = Checkpoint(positions) if positions else None

    def reopen(self):
        assert self.harness.reopen() == self.checkpoint


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=15))
def test_any_sequence_of_calls_leaves_what_a_dict_would_hold(make_harness, put, make_checkpoint, steps):
    with make_harness() as harness:
        model = Model(harness, put, make_checkpoint)
        for name, *arguments in steps:
            getattr(model, name)(*arguments)
            assert harness.rows() == {key: held(row) for key, row in model.rows.items()}
        harness.check()
        model.reopen()


def test_a_mutation_names_its_fields():
    assert AppliedMutation._fields == ("partition", "key", "value", "seq", "timestamp")


# Rings


def chunk(*entries):
    return RingChunk.of([seq for seq, _ in entries], [key for _, key in entries])


def ring_of(checkpoint, partition=0):
    """Floor and entries of a ring as an index gives it back."""
    change = checkpoint.rings[partition]
    entries = [entry for part in change.chunks for entry in part.entries() if entry[0] > change.floor_seq]
    return change.floor_seq, sorted(entries)


def test_rings_are_stored_with_the_rows(harness, make_checkpoint, put):
    a, b, c = chunk((1, b"a"), (2, b"b")), chunk((3, b"a")), chunk((1, b"x"))
    positions = make_checkpoint({0: 2, 1: 1}).positions
    harness.index.apply([put(b"a", "one", 1)], Checkpoint(positions, {0: RingChange(0, None, (a,))}))
    harness.index.apply([], Checkpoint(positions, {0: RingChange(0, None, (b,)), 1: RingChange(0, None, (c,))}))
    found = harness.reopen()
    assert found.positions == positions
    assert ring_of(found) == (0, [(1, b"a"), (2, b"b"), (3, b"a")])
    assert ring_of(found, 1) == (0, [(1, b"x")])


def test_what_is_below_the_floor_counts_for_nothing(harness, make_checkpoint):
    positions = make_checkpoint({0: 9}).positions
    for floor_seq, entries in ((0, chunk((1, b"a"))), (0, chunk((2, b"b"))), (1, chunk((3, b"c")))):
        harness.index.apply([], Checkpoint(positions, {0: RingChange(floor_seq, None, (entries,))}))
    assert ring_of(harness.reopen()) == (1, [(2, b"b"), (3, b"c")])
    harness.index.apply([], Checkpoint(positions, {0: RingChange(0)}))
    assert ring_of(harness.reopen())[0] == 1, "a floor does not fall"


def test_what_was_read_again_replaces_entries(harness, make_checkpoint):
    positions = make_checkpoint({0: 9}).positions
    harness.index.apply([], Checkpoint(positions, {0: RingChange(0, None, (chunk((1, b"a"), (3, b"b")),))}))
    harness.index.apply([], Checkpoint(positions, {0: RingChange(0, None, (chunk((4, b"c")),))}))
    harness.index.apply([], Checkpoint(positions, {0: RingChange(0, 2, (chunk((7, b"b"), (7, b"c")),))}))
    assert ring_of(harness.reopen()) == (0, [(1, b"a"), (7, b"b"), (7, b"c")])


def test_clear_forgets_the_ring(harness, make_checkpoint):
    positions = make_checkpoint({0: 9, 1: 9}).positions
    rings = {0: RingChange(5, None, (chunk((7, b"a")),)), 1: RingChange(5, None, (chunk((8, b"b")),))}
    harness.index.apply([], Checkpoint(positions, rings))
    harness.index.clear(0)
    found = harness.reopen()
    assert list(found.rings) == [1]
    assert ring_of(found, 1) == (5, [(8, b"b")])
