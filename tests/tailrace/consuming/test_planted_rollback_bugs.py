"""Each rule of a rollback left out in its turn: the model has to notice, or it is too weak to show that they hold."""

import random

import pytest
from tests.crashing_indexes import AtomicIndex, RowByRowIndex
from tests.tailrace.consuming.nodes import Conversation
from tests.tailrace.consuming.rollback_model import World
from tests.tailrace.consuming.test_rollback_model import random_operations

from tailrace.consuming.partition import ConsumedPartition
from tailrace.consuming.resume import ResumeState
from tailrace.consuming.ring import Ring, RingChange
from tailrace.indexes import MemoryIndex
from tailrace.indexes.applier import Applier
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN
from tailrace.wire.filters import StreamFilter

LIVES_MAX = 2_000

A, B = ("write", b"a", False), ("write", b"b", False)
# a is lost, read again from the history after, and cut off there; that loses a too.
LOST_TWICE = [A, B, A, ("consume", 0, None, None), ("crash", 1), A, ("consume", 0, 2, None), ("crash", 1), B]

# It dies after one of two keys was read again; then the old leader's copy answers, with all that it had.
HALF_READ = [
    *[A, B, ("replicate", 1), A, B, ("replicate", 2), ("consume", 0, None, None)],
    *[("fail_over", 1), A, B, ("consume", 0, None, 3), ("consume", 1, None, None)],
]

# A deletion is purged where the consumer begins, and another copy has not heard of it when it takes over.
PURGED = [
    *[A, ("replicate", 1), ("write", b"a", True), ("compact", 0, 2), ("consume", 0, None, None)],
    *[("fail_over", 1), B],
]


def is_noticed(make_index, operations=None, **arguments):
    """Some life of the index ends wrong; ``operations`` are those of all lives, or they are at random."""
    for seed in range(LIVES_MAX):
        try:
            World(make_index, seed, **arguments).run(operations or random_operations(random.Random(seed)))
        except AssertionError:
            return True
    return False


def without_ring_top(monkeypatch):
    """A consumer does not look at what its ring has."""
    of = ResumeState.of
    monkeypatch.setattr(ResumeState, "of", lambda position, ring: of(position, ring)._replace(top_seq=0))


@pytest.mark.planted
def test_a_ring_that_is_dropped_after_a_refetch(monkeypatch):
    """What was read again may be lost in its turn."""
    monkeypatch.setattr(Ring, "replacing", lambda self, seq, by_seq, keys: RingChange(self.floor_seq, seq))
    assert is_noticed(AtomicIndex, LOST_TWICE)


@pytest.mark.planted
def test_an_end_that_is_not_raised_after_a_refetch(monkeypatch):
    """The consumer says that it stands where it has rolled back to, and has rows from above."""
    roll_back_to = ConsumedPartition.roll_back_to

    def not_raised(self, seq, last, log, change=None):
        return roll_back_to(self, seq, last if last == SNAPSHOT_LAST_UNKNOWN else seq, log, change)

    monkeypatch.setattr(ConsumedPartition, "roll_back_to", not_raised)
    without_ring_top(monkeypatch)
    assert is_noticed(AtomicIndex, LOST_TWICE)


@pytest.mark.planted
def test_an_end_that_does_not_count_the_ring(monkeypatch):
    """Rows were applied whose position was not stored."""
    without_ring_top(monkeypatch)
    monkeypatch.setattr(Applier, "_promised", lambda self, positions, rings: self.positions or positions)
    assert is_noticed(RowByRowIndex)


@pytest.mark.planted
def test_a_point_that_is_not_stored_before_keys_are_read_again(monkeypatch):
    """Dying half-way, the consumer says that it is where it was, and meets a node on which that is right."""
    store = Applier._store

    def not_stored(self, mutations, checkpoint):
        if mutations or all(at.snapshot_last != SNAPSHOT_LAST_UNKNOWN for at in checkpoint.positions.values()):
            store(self, mutations, checkpoint)

    monkeypatch.setattr(Applier, "_store", not_stored)
    assert is_noticed(RowByRowIndex, HALF_READ)


@pytest.mark.planted
@pytest.mark.parametrize("index", [AtomicIndex, RowByRowIndex])
def test_a_clear_that_is_left_out(monkeypatch, index):
    monkeypatch.setattr(MemoryIndex, "clear", lambda self, partition: None)
    monkeypatch.setattr(RowByRowIndex, "clear", lambda self, partition: None)
    assert is_noticed(index)


@pytest.mark.planted
def test_keys_that_are_not_read_again(monkeypatch):
    monkeypatch.setattr(Ring, "keys_above", lambda self, seq: [])
    assert is_noticed(AtomicIndex)


@pytest.mark.planted
def test_a_purge_seq_that_a_filtered_consumer_is_not_told(monkeypatch):
    """It stands where deletions are missing, goes back to where they do not count, and what they deleted is there."""
    monkeypatch.setattr(Conversation, "must_announce", lambda self, seq: False)
    assert is_noticed(AtomicIndex, PURGED, filter=StreamFilter(b"a"))


@pytest.mark.parametrize("index", [AtomicIndex, RowByRowIndex])
def test_the_rules_as_they_are(index):
    """Those above fail for what was planted."""
    for seed in range(20):
        World(index, seed).run(LOST_TWICE)
        World(index, seed).run(HALF_READ)
        World(index, seed, filter=StreamFilter(b"a")).run(PURGED)
