"""`resume_point` against nodes that crash, fork, purge and come back, and a consumer that follows any of them.

The world keeps what the function never sees: each mutation's identity. So it knows how much of their histories the
consumer and a node really share, and what the consumer's state has to be at the end of each snapshot.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tiers import examples, first_in_test

from tailrace.model.failover import (
    ENTRIES_MAX,
    FailoverEntry,
    FailoverLog,
    Resume,
    ResumeReason,
    request_bounds,
    resume_point,
)


class Row(NamedTuple):
    seq: int
    key: str
    value: int | None
    identity: int  # of the mutation, unique in the world


@dataclass
class Node:
    """A copy of the partition. ``history`` is every mutation ever, ``rows`` what is still kept of it."""

    log: FailoverLog
    history: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    purged_to: int = 0
    purge_seq: int = 0

    @property
    def high_seq(self):
        return len(self.history)

    def copy(self):
        return Node(self.log, list(self.history), list(self.rows), self.purged_to, self.purge_seq)

    def state(self):
        return {key: row.value for key, row in newest(self.history).items() if row.value is not None}

    def write(self, row):
        self.history.append(row)
        self.rows.append(row)

    def lose(self, count):
        """An unclean stop; what a compaction took was stable before, and stays."""
        self.history = self.history[: max(self.purged_to, self.high_seq - count)]
        self.rows = [row for row in self.rows if row.seq <= self.high_seq]

    def compact(self, upto):
        """Fold everything up to ``upto`` into one segment: the newest row of each key, and no tombstones.

        A newer row above ``upto`` excuses no tombstone: a crash may take it, and then the deletion is nowhere.
        """
        self.purged_to = max(self.purged_to, min(upto, self.high_seq))
        head = newest(row for row in self.history if row.seq <= self.purged_to)
        self.purge_seq = max([self.purge_seq, *(row.seq for row in head.values() if row.value is None)])
        kept = {row.seq for row in head.values() if row.value is not None}
        self.rows = [row for row in self.rows if row.seq > self.purged_to or row.seq in kept]


@dataclass
class Consumer:
    """Goes back only to points where it stood between snapshots, which is what rolling back by truncation may do."""

    log: FailoverLog = field(default_factory=FailoverLog)
    seq: int = 0
    first: int = 0
    last: int = 0
    purge: int | None = None
    state: dict[str, int] = field(default_factory=dict)
    points: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    promised: list[Row] = field(default_factory=list)  # the history that it was told about, up to `last`

    def roll_back(self, to, node):
        self.points = [(seq, state) for seq, state in self.points if seq <= to]
        seq, state = self.points[-1] if self.points else (0, {})
        self.seq = self.first = self.last = seq
        self.state = dict(state)
        self.promised = self.promised[:seq]
        self.log = node.log
        if seq == 0:
            self.purge = None


def newest(rows):
    return {row.key: row for row in rows}


def shared_prefix(ours, theirs):
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one.identity != other.identity:
            return index
    return min(len(ours), len(theirs))


class World:
    def __init__(self, seed, nodes=3):
        self.random = random.Random(seed)
        self.count = 0
        founder = Node(FailoverLog([self.new_entry(1, 0)]))
        self.nodes = [founder.copy() for _ in range(nodes)]
        self.leader = 0
        self.backup = founder.copy()
        self.consumer = Consumer()
        self.resumed = []

    def new_entry(self, term, base):
        self.count += 1
        return FailoverEntry(self.count.to_bytes(16, "big"), term, base)

    def lead(self, node):
        term = 1 + max(known.log.term for known in self.nodes)
        node.log = node.log.with_entry(self.new_entry(term, node.high_seq))

    def write(self, key, deleted):
        self.count += 1
        leader = self.nodes[self.leader]
        leader.write(Row(leader.high_seq + 1, key, None if deleted else self.count, self.count))

    def crash(self, lost):
        leader = self.nodes[self.leader]
        leader.lose(lost)
        self.lead(leader)

    def replicate(self, other):
        self.nodes[(self.leader + other) % len(self.nodes)] = self.nodes[self.leader].copy()

    def fail_over(self, other):
        self.leader = (self.leader + other) % len(self.nodes)
        self.lead(self.nodes[self.leader])

    def back_up(self):
        self.backup = self.nodes[self.leader].copy()

    def restore(self):
        """The leader's directory is replaced by the backup, which may have been anywhere before."""
        self.nodes[self.leader] = node = self.backup.copy()
        term = (1 << 20) + max(known.log.term for known in self.nodes)
        node.log = node.log.with_entry(self.new_entry(term, node.high_seq))

    def compact(self, other, upto):
        self.nodes[(self.leader + other) % len(self.nodes)].compact(upto)

    def consume(self, other, rows_max, deduplicate):
        """One connection: to the leader or to whoever else answers, for all of a snapshot or the first rows of it."""
        node, consumer = self.nodes[(self.leader + other) % len(self.nodes)], self.consumer
        self.resume(node)
        if consumer.seq == 0:
            consumer.purge = node.purge_seq
        # A resume inside a snapshot is promised at least that snapshot's end; `resume_point` made sure of it.
        assert consumer.last <= node.high_seq
        consumer.last = node.high_seq
        consumer.promised = list(node.history)
        consumer.log = node.log
        rows = [row for row in node.rows if row.seq > consumer.seq]
        if deduplicate:
            kept = newest(rows)
            rows = [row for row in rows if kept[row.key] is row]
        for row in rows[:rows_max]:
            self.apply(row)
        if len(rows) <= (len(rows) if rows_max is None else rows_max):
            self.finish(node)

    def apply(self, row):
        consumer = self.consumer
        consumer.seq = row.seq
        if row.value is None:
            consumer.state.pop(row.key, None)
        else:
            consumer.state[row.key] = row.value
        self.forget_purge()

    def finish(self, node):
        consumer = self.consumer
        consumer.seq = consumer.first = consumer.last
        self.forget_purge()
        consumer.points.append((consumer.seq, dict(consumer.state)))
        assert consumer.state == node.state()

    def forget_purge(self):
        if self.consumer.purge is not None and self.consumer.seq >= self.consumer.purge:
            self.consumer.purge = None

    def resume(self, node):
        consumer = self.consumer
        while True:
            answer = self.asked(node)
            self.check_against_truth(node, answer)
            self.resumed.append(answer)
            if answer.seq == consumer.seq and answer.seq > 0:
                return
            consumer.roll_back(answer.seq, node)
            if consumer.seq == 0:
                return

    def asked(self, node):
        consumer = self.consumer
        seq, consumer.first, consumer.last = request_bounds(consumer.seq, consumer.first, consumer.last)
        return resume_point(
            consumer.log, seq, consumer.first, consumer.last, consumer.purge, node.log, node.high_seq, node.purge_seq
        )

    def check_against_truth(self, node, answer):
        """No lower than it has to be, and no higher than the histories agree."""
        consumer = self.consumer
        if answer.why in (ResumeReason.PURGED, ResumeReason.NOTHING_STORED):
            assert answer.seq == 0
            return
        if not {entry.branch for entry in consumer.log} & {entry.branch for entry in node.log}:
            assert answer == Resume(0, ResumeReason.NO_COMMON_BRANCH)
            return
        shared = shared_prefix(consumer.promised[: consumer.last], node.history)
        if consumer.last <= shared:
            assert answer.seq == consumer.seq
        else:
            assert answer.seq == min(consumer.first, shared)


KEYS = st.sampled_from("abc")
OTHERS = st.integers(0, 2)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), KEYS, st.booleans()),
    st.tuples(st.just("crash"), st.integers(0, 2)),
    st.tuples(st.just("replicate"), OTHERS),
    st.tuples(st.just("fail_over"), OTHERS),
    st.tuples(st.just("compact"), OTHERS, st.integers(0, 12)),
    st.tuples(st.just("back_up")),
    st.tuples(st.just("restore")),
    st.tuples(st.just("consume"), OTHERS, st.none() | st.integers(0, 3), st.booleans()),
)
WRITE_A, WRITE_B, DELETE_A = ("write", "a", False), ("write", "b", False), ("write", "a", True)
CONSUME = ("consume", 0, None, True)


def run(operations):
    world = World(seed=0)
    for name, *arguments in operations:
        getattr(world, name)(*arguments)
    world.consume(0, None, True)
    return world


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(OPERATIONS, max_size=30))
@example([WRITE_A, CONSUME, ("replicate", 1), ("fail_over", 1)])  # nothing written after the fork, resume at its base
@example([WRITE_A, ("replicate", 1), WRITE_B, CONSUME, ("fail_over", 1), DELETE_A])  # one row above a base
@example([WRITE_A, CONSUME, WRITE_B, ("crash", 1), WRITE_A, ("crash", 2), WRITE_B])  # two forks while away
@example([WRITE_A, WRITE_B, ("consume", 0, 1, False), ("crash", 1), WRITE_B])  # half a snapshot, and its end is lost
@example([WRITE_A, WRITE_B, CONSUME, DELETE_A, ("compact", 0, 3)])  # a deletion that the consumer never hears of
@example([WRITE_A, DELETE_A, ("compact", 0, 2), WRITE_B, WRITE_A, ("consume", 0, 1, True)])  # a first fill goes on
@example([WRITE_A, ("back_up",), WRITE_B, CONSUME, ("restore",), WRITE_A, WRITE_A])  # above it is another history
@example([WRITE_A, CONSUME, ("back_up",), WRITE_B, ("restore",)])  # the consumer has nothing above the backup
@example([WRITE_A, ("back_up",), CONSUME, *[("crash", 0)] * ENTRIES_MAX, ("restore",)])  # a loop of crashes, no writes
def test_the_state_is_right_at_the_end_of_every_snapshot(operations):
    run(operations)


@pytest.mark.slow
@pytest.mark.parametrize("count", first_in_test([4_000, 20_000], 1))
def test_the_state_is_right_in_many_long_histories(count):
    """Longer and more of them than hypothesis makes, and every reason occurs."""
    chance = random.Random(20240607)
    reasons = set()
    for _ in range(count):
        operations = [random_operation(chance) for _ in range(chance.randint(5, 60))]
        reasons |= {answer.why for answer in run(operations).resumed}
    assert reasons == set(ResumeReason)


def test_a_consumer_that_was_away_for_more_failovers_than_a_log_holds():
    away = [operation for _ in range(ENTRIES_MAX) for operation in (WRITE_B, ("crash", 0))]
    world = run([WRITE_A, CONSUME, *away])
    assert world.resumed[-1] == Resume(0, ResumeReason.NO_COMMON_BRANCH)
    assert run([WRITE_A, CONSUME, *away[:-2]]).resumed[-1] == Resume(1, ResumeReason.STANDS)


def test_crashes_without_writes_evict_nothing():
    world = run([WRITE_A, CONSUME, *[("crash", 0)] * (2 * ENTRIES_MAX), WRITE_B])
    assert world.resumed[-1] == Resume(1, ResumeReason.STANDS)
    assert len(world.nodes[0].log) == 2


@pytest.mark.parametrize(("purged", "seq"), [(2, 2), (3, 0)])
def test_the_purge_seq_on_either_side(purged, seq):
    """At the purge seq a consumer has heard of every deletion that is gone; below it, it may not have."""
    writes = [WRITE_B, DELETE_A] if purged == 2 else [WRITE_B, WRITE_B, DELETE_A]
    head = [*writes[:2], CONSUME, *writes[2:]]
    assert run([*head, ("compact", 0, purged)]).resumed[-1].seq == seq


def random_operation(chance):
    match chance.choices(("write", "crash", "replicate", "fail_over", "compact", "consume"), (8, 1, 1, 1, 1, 5))[0]:
        case "write":
            return "write", chance.choice("abc"), chance.random() < 0.4
        case "crash":
            return "crash", chance.choice((0, 1, 1, 2))
        case "compact":
            return "compact", chance.randrange(3), chance.randrange(20)
        case "consume":
            return (
                "consume",
                chance.choice((0, 0, 0, 1, 2)),
                chance.choice((None, None, 1, 2, 3)),
                chance.random() < 0.8,
            )
        case name:
            return name, chance.randrange(3)
