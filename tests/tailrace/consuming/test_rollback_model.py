"""A consumer with an index that dies anywhere; its nodes lose their ends, fail over, fall behind and come back."""

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.crashing_indexes import AtomicIndex, RinglessIndex, RowByRowIndex, TruncatingIndex
from tests.tailrace.consuming.rollback_model import World
from tests.tiers import examples

from tailrace.wire.filters import EVERYTHING, StreamFilter

INDEXES = {
    "atomic": AtomicIndex,
    "ringless": RinglessIndex,
    "row by row": RowByRowIndex,
    "truncating": TruncatingIndex,
}
SOME = StreamFilter(b"a")  # of the keys a, b, c
OTHERS = st.integers(0, 2)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from([b"a", b"b", b"c"]), st.booleans()),
    st.tuples(st.just("crash"), st.integers(0, 3)),
    st.tuples(st.just("replicate"), OTHERS),
    st.tuples(st.just("fail_over"), OTHERS),
    st.tuples(st.just("compact"), OTHERS, st.integers(0, 12)),
    st.tuples(st.just("restore"), OTHERS),
    st.tuples(st.just("restart")),
    st.tuples(st.just("consume"), OTHERS, st.none() | st.integers(1, 8), st.none() | st.integers(0, 12)),
)
# The operations, the seed, the rows of the ring, and the filter.
CASES = (
    st.lists(OPERATIONS, max_size=25),
    st.integers(0, 99),
    st.sampled_from([0, 2, 100]),
    st.sampled_from([EVERYTHING, SOME]),
)
# The seeds of random lives: those of `make test`, and those of `make long`.
LIVES = [range(100), pytest.param(range(100, 400), marks=pytest.mark.long)]
A, B, NO_A = ("write", b"a", False), ("write", b"b", False), ("write", b"a", True)
CONSUME = ("consume", 0, None, None)


def random_operations(chance):
    return [_random_operation(chance) for _ in range(chance.randint(5, 30))]


def _random_operation(chance):
    names = ("write", "crash", "replicate", "fail_over", "compact", "restore", "restart", "consume")
    match chance.choices(names, (9, 2, 1.5, 1.5, 0.7, 0.2, 0.3, 6))[0]:
        case "write":
            return "write", chance.choice([b"a", b"b", b"c"]), chance.random() < 0.3
        case "crash":
            return "crash", chance.choice((0, 1, 1, 2, 3))
        case "compact":
            return "compact", chance.randrange(3), chance.randrange(15)
        case "restart":
            return ("restart",)
        case "consume":
            node = chance.choice((0, 0, 0, 1, 2))
            return "consume", node, chance.choice((None, None, 1, 2, 3, 5)), chance.choice((None, None, *range(10)))
        case name:
            return name, chance.randrange(3)


@pytest.mark.parametrize("index", INDEXES)
@settings(max_examples=examples(150), deadline=None)
@given(*CASES)
@example([A, CONSUME, ("replicate", 1), ("fail_over", 1)], 0, 100, SOME)  # nothing written after the fork
@example([A, ("replicate", 1), B, CONSUME, ("fail_over", 1), NO_A], 0, 100, EVERYTHING)  # one row above a base
@example([A, CONSUME, B, CONSUME, ("crash", 1), A, ("crash", 1), B], 0, 100, EVERYTHING)  # two forks while away
@example([A, B, A, ("consume", 0, 2, None), ("crash", 2), B], 0, 100, EVERYTHING)  # a part, whose end is lost
@example([A, B, CONSUME, NO_A, ("compact", 0, 3)], 0, 100, SOME)  # a deletion that the consumer never hears of
@example([A, CONSUME, B, ("replicate", 1), CONSUME, ("restore", 1), ("restore", 2)], 0, 100, EVERYTHING)
@example([("restore", 0), A, CONSUME, ("restore", 1)], 0, 0, EVERYTHING)  # a backup older than the last restore
def test_the_index_equals_the_node_whenever_all_was_said(index, operations, seed, ring_rows, filter):
    World(INDEXES[index], seed, ring_rows, filter).run(operations)


@pytest.mark.slow
@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("next_node", range(3))
@pytest.mark.parametrize("filter", [EVERYTHING, SOME], ids=["everything", "filtered"])
def test_it_may_die_at_every_step_of_a_rollback(index, next_node, filter):
    """And again at each step after that, whichever node answers then: the new leader, the old one, one far behind."""
    fork = [A, B, ("replicate", 1), A, NO_A, B, ("replicate", 2), CONSUME, ("fail_over", 1), A, B]
    deaths = 1
    for first in itertools.count():
        if not deaths:
            break
        for second in (None, *range(0, 12, 3)):
            died = ("consume", 0, None, first)
            deaths = World(INDEXES[index], first, filter=filter).run([*fork, died]).deaths
            World(INDEXES[index], first, filter=filter).run([*fork, died, ("consume", next_node, None, second)])
    assert first > 3, "there is more than one step to die at"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LIVES)
@pytest.mark.parametrize("index", INDEXES)
def test_many_random_lives(index, seeds):
    for seed in seeds:
        filter = (EVERYTHING, SOME)[seed % 2]
        World(INDEXES[index], seed, (100, 100, 2)[seed % 3], filter).run(random_operations(random.Random(seed)))


@pytest.mark.soak
@pytest.mark.parametrize("index", INDEXES)
def test_very_many_random_lives(index):
    for seed in range(400, 3_000):
        filter = (EVERYTHING, SOME)[seed % 2]
        World(INDEXES[index], seed, (100, 100, 2)[seed % 3], filter).run(random_operations(random.Random(seed)))
