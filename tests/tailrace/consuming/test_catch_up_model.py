"""Consumers that catch up by segments, in the models of rollbacks and of stored positions."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.crashing_indexes import AtomicIndex, RowByRowIndex
from tests.tailrace.consuming.rollback_model import World
from tests.tailrace.consuming.segment_nodes import SegmentConversation, small_parts
from tests.tailrace.consuming.test_positions_model import FILTERS, MODES, ApplicationWorld
from tests.tailrace.consuming.test_rollback_model import CASES, INDEXES, LIVES, OPERATIONS, SOME, random_operations
from tests.tiers import examples

from tailrace.consuming import catch_up, catch_up_rules
from tailrace.consuming.catch_up import CatchUp
from tailrace.consuming.partition_catch_up import PartitionCatchUp
from tailrace.consuming.resume import ResumeAction, ResumeDecision
from tailrace.errors import ProtocolError
from tailrace.model.failover import Resume, ResumeReason
from tailrace.wire.filters import EVERYTHING

LIVES_MAX = 300


class CountingConversation(SegmentConversation):
    """Counts the parts that were fetched by all consumers."""

    parts = 0

    def _fetch(self, id, fetch):
        CountingConversation.parts += 1
        return super()._fetch(id, fetch)


class FollowedWorld(World):
    """An index that follows, and takes segments wherever there are any."""

    conversation = CountingConversation
    catch_up = "segments"


class ReadWorld(ApplicationWorld):
    """An application that stores its positions, and takes segments wherever there are any."""

    conversation = CountingConversation
    catch_up = "segments"


def follow(make_index, seed, operations=None, **options):
    with small_parts(random.Random(seed)):
        FollowedWorld(make_index, seed, **options).run(operations or random_operations(random.Random(seed)))


def read(seed, mode="follow", ring_rows=100, filter=EVERYTHING, operations=None):
    with small_parts(random.Random(seed)):
        ReadWorld(seed, ring_rows, mode, filter).run(operations or random_operations(random.Random(seed)))


@pytest.mark.parametrize("index", INDEXES)
@settings(max_examples=examples(60), deadline=None)
@given(*CASES)
def test_the_index_equals_the_node_whenever_all_was_said(index, operations, seed, ring_rows, filter):
    follow(INDEXES[index], seed, [*operations, ("restart",)], ring_rows=ring_rows, filter=filter)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(OPERATIONS, max_size=25), st.integers(0, 99), st.sampled_from([0, 2, 100]), MODES, st.sampled_from(FILTERS)
)
def test_the_application_has_what_the_node_has_whenever_all_was_said(operations, seed, ring_rows, mode, filter):
    read(seed, mode, ring_rows, filter, operations or [("restart",)])


def test_the_lives_take_segments():
    """Those above prove nothing otherwise."""
    CountingConversation.parts = 0
    for seed in range(20):
        read(seed)
    assert CountingConversation.parts > 100


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LIVES)
@pytest.mark.parametrize("index", INDEXES)
def test_many_random_lives_of_an_index(index, seeds):
    for seed in seeds:
        follow(INDEXES[index], seed, ring_rows=(100, 100, 2)[seed % 3], filter=(EVERYTHING, SOME)[seed % 2])


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LIVES)
@pytest.mark.parametrize("mode", ["follow", "restart"])
def test_many_random_lives_of_an_application(mode, seeds):
    for seed in seeds:
        read(seed, mode, (100, 100, 2)[seed % 3], FILTERS[seed % 4])


# Planted bugs, each in lives that it matters to

A, B = ("write", b"a", False), ("write", b"b", False)
EVERY = ("consume", 0, None, None)
# Half of a segment was read, and its other half, with the newer row of a, is lost.
HALF_LOST = [A, B, ("replicate", 1), A, ("compact", 0, 3), ("consume", 0, 2, None), ("fail_over", 1), B, B, EVERY]
# A part of a run was read, and more of another node's runs, which end elsewhere.
IN_PARTS = [A, B, A, B, A, B, *[("consume", 0, 2, None)] * 5, EVERY]
# a is lost, read again from the history after, and cut off there; that loses a too.
LOST_TWICE = [A, B, A, EVERY, ("crash", 1), A, ("consume", 0, 2, None), ("crash", 1), B, B, EVERY]
# A deletion is purged where the consumer begins, and another copy has not heard of it when it takes over.
PURGED = [A, ("replicate", 1), ("write", b"a", True), ("compact", 0, 2), EVERY, ("fail_over", 1), B]
LIVES = [HALF_LOST, IN_PARTS, LOST_TWICE, PURGED]


def is_noticed(operations, *, filter=EVERYTHING):
    """Some life of an application or of an index ends wrong, or breaks the protocol."""
    for seed in range(LIVES_MAX):
        try:
            read(seed, filter=filter, operations=operations)
            follow((AtomicIndex, RowByRowIndex)[seed % 2], seed, operations, filter=filter)
        except (AssertionError, ProtocolError):
            return True
    return False


@pytest.mark.planted
def test_a_consumer_that_stands_inside_of_a_segment(monkeypatch):
    message = catch_up.SnapshotStartMessage
    monkeypatch.setattr(catch_up, "SnapshotStartMessage", lambda *fields: message(*fields)._replace(complete=True))
    assert is_noticed(HALF_LOST)


@pytest.mark.planted
def test_a_purge_seq_that_is_not_told(monkeypatch):
    message = catch_up.SnapshotStartMessage
    monkeypatch.setattr(catch_up, "SnapshotStartMessage", lambda *fields: message(*fields)._replace(purge_seq=0))
    assert is_noticed(PURGED)


@pytest.mark.planted
def test_a_purge_seq_that_a_filter_leaves_out(monkeypatch):
    """Only the first matching row announces the snapshot."""

    def begin(self, copy, last_seq):
        copy.enter_snapshot(last_seq)
        return [] if self._selects else [self._announce(copy)]

    monkeypatch.setattr(CatchUp, "_begin", begin)
    assert is_noticed(PURGED, filter=SOME)


@pytest.mark.planted
def test_a_history_that_is_not_compared(monkeypatch):
    monkeypatch.setattr(catch_up_rules, "resume_point", lambda log, seq, *_: Resume(seq, ResumeReason.STANDS))
    monkeypatch.setattr(catch_up_rules, "decide", lambda *_: ResumeDecision(ResumeAction.STREAM, 0))
    assert is_noticed(HALF_LOST)


@pytest.mark.planted
def test_rows_that_may_be_lost_and_were_not_read_again(monkeypatch):
    """The seq of the position is in the node's history, and not all that was applied above."""
    monkeypatch.setattr(catch_up_rules, "decide", lambda *_: ResumeDecision(ResumeAction.STREAM, 0))
    assert is_noticed(LOST_TWICE)


@pytest.mark.planted
def test_a_promised_end_that_is_forgotten(monkeypatch):
    monkeypatch.setattr(catch_up, "snapshots_of", lambda files, promised: [(file, file.last_seq) for file in files])
    assert is_noticed(IN_PARTS)


@pytest.mark.planted
def test_a_rest_of_a_segment_that_is_skipped(monkeypatch):
    """The consumer goes on with the next segment after a lost connection."""
    begin = PartitionCatchUp.begin

    def skipping(self, told, files, stop_seq):
        seq = self.partition.position.seq
        files = list(files)
        begin(self, told, [each for each in files if each[0].first_seq > seq] or files, stop_seq)

    monkeypatch.setattr(PartitionCatchUp, "begin", skipping)
    assert is_noticed(IN_PARTS)


@pytest.mark.slow
def test_the_rules_as_they_are():
    """The lives that notice what was planted end well."""
    for seed in range(20):
        for operations in LIVES:
            for filter in (EVERYTHING, SOME):
                read(seed, filter=filter, operations=operations)
                follow((AtomicIndex, RowByRowIndex)[seed % 2], seed, operations, filter=filter)
