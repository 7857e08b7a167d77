"""Histories that are known to have an order, and others that have none."""

import itertools
import math
import random

import pytest

from .linearisability import (
    Condition,
    Kind,
    Operation,
    Outcome,
    State,
    Undecided,
    explain,
    is_linearisable,
    owned_versions,
    step,
)


def put(asked, answered, value, version=None, condition=Condition.NONE, expected=None):
    outcome = Outcome.DONE if answered < math.inf else Outcome.UNKNOWN
    return Operation(Kind.PUT, asked, answered, outcome, value, version, condition, expected)


def refused(asked, answered, version, condition, expected=None, kind=Kind.PUT):
    return Operation(kind, asked, answered, Outcome.REFUSED, b"other", version, condition, expected)


def delete(asked, answered, version=None, condition=Condition.NONE):
    outcome = Outcome.DONE if answered < math.inf else Outcome.UNKNOWN
    return Operation(Kind.DELETE, asked, answered, outcome, None, version, condition)


def get(asked, answered, value, version=None):
    return Operation(Kind.GET, asked, answered, Outcome.DONE, value, version)


GOOD = {
    "nothing": [],
    "one after the other": [put(1, 2, b"a", 1), get(3, 4, b"a", 1), delete(5, 6, 2), get(7, 8, None)],
    "a get beside a put may see it": [put(1, 4, b"a", 1), get(2, 3, b"a", 1)],
    "or may not": [put(1, 4, b"a", 1), get(2, 3, None)],
    "an unanswered put that was seen later": [put(1, math.inf, b"a"), get(2, 3, None), get(4, 5, b"a", 7)],
    "an unanswered put that never was": [put(1, math.inf, b"a"), get(2, 3, None), get(4, 5, None)],
    "an unanswered put whose version a condition names": [
        put(1, math.inf, b"a"),
        put(2, 3, b"b", 9, Condition.IF_VERSION, 7),
        get(4, 5, b"b", 9),
    ],
    "a conflict with a concurrent put": [
        put(1, 2, b"a", 1),
        put(3, 6, b"b", 2),
        refused(4, 5, 2, Condition.IF_VERSION, 1),
    ],
    "two that were put if absent, one of them refused": [
        put(1, 4, b"a", 1, Condition.IF_ABSENT),
        refused(2, 3, 1, Condition.IF_ABSENT),
    ],
    "a deletion if present of an absent key": [
        refused(1, 2, None, Condition.IF_PRESENT, kind=Kind.DELETE),
        put(3, 4, b"a", 1),
        delete(5, 6, 2, Condition.IF_PRESENT),
    ],
    "a deletion if present of an unanswered put": [
        put(1, math.inf, b"a"),
        delete(2, 3, 1, Condition.IF_PRESENT),
    ],
    "an unanswered deletion": [put(1, 2, b"a", 1), delete(3, math.inf), get(4, 5, b"a", 1), get(6, 7, None)],
}
BAD = {
    "a get of a value that was never put": [get(1, 2, b"a", 1)],
    "a lost put": [put(1, 2, b"a", 1), get(3, 4, None)],
    "a stale get": [put(1, 2, b"a", 1), put(3, 4, b"b", 2), get(5, 6, b"a", 1)],
    "two gets that see two puts in two orders": [
        put(1, 10, b"a", 1),
        put(2, 11, b"b", 2),
        get(3, 4, b"a", 1),
        get(5, 6, b"b", 2),
        get(7, 8, b"a", 1),
    ],
    "an unanswered put that comes and goes": [put(1, math.inf, b"a"), get(2, 3, b"a", 5), get(4, 5, None)],
    "one value under two versions": [put(1, math.inf, b"a"), get(2, 3, b"a", 5), get(4, 5, b"a", 6)],
    "both of two conditional puts": [
        put(1, 2, b"a", 1),
        put(3, 8, b"b", 2, Condition.IF_VERSION, 1),
        put(4, 7, b"c", 3, Condition.IF_VERSION, 1),
    ],
    "both of two that were put if absent": [
        put(1, 4, b"a", 1, Condition.IF_ABSENT),
        put(2, 3, b"b", 2, Condition.IF_ABSENT),
    ],
    "a refusal for nothing": [put(1, 2, b"a", 1), refused(3, 4, 1, Condition.IF_VERSION, 1)],
    "a conflict with a value that is gone": [
        put(1, 2, b"a", 1),
        put(3, 4, b"b", 2),
        refused(5, 6, 1, Condition.IF_ABSENT),
    ],
    "if absent refused for an absent key": [refused(1, 2, None, Condition.IF_ABSENT)],
    "a deletion if present, of a deleted key": [
        put(1, 2, b"a", 1),
        delete(3, 4, 2),
        delete(5, 6, 3, Condition.IF_PRESENT),
    ],
    "a deletion if present refused for a present key": [
        put(1, 2, b"a", 1),
        refused(3, 4, None, Condition.IF_PRESENT, kind=Kind.DELETE),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_history_with_an_order(name):
    assert is_linearisable(GOOD[name])
    assert explain(GOOD[name]) == "it is linearisable"


@pytest.mark.parametrize("name", BAD)
def test_a_history_without_an_order(name):
    assert not is_linearisable(BAD[name])
    assert " -> " in explain(BAD[name])


def by_trying_all(history):
    """The same, without anything clever: every order of every choice of the unanswered ones."""
    answered = [it for it in history if it.answered < math.inf]
    unanswered = [it for it in history if it.answered == math.inf]
    for count in range(len(unanswered) + 1):
        for chosen in itertools.combinations(unanswered, count):
            for order in itertools.permutations([*answered, *chosen]):
                if all(one.asked < other.answered for one, other in itertools.combinations(order, 2)) and fits(
                    order, owned_versions(history)
                ):
                    return True
    return False


def fits(order, owned):
    state = State()
    for operation in order:
        state = step(state, operation, owned)
        if state is None:
            return False
    return True


def some_history(rnd):
    """Of five operations that overlap, of few values and versions."""
    moments = rnd.sample(range(20), 10)
    history = []
    for number in range(5):
        asked, answered = sorted(moments[2 * number : 2 * number + 2])
        if rnd.random() < 0.5:
            value = rnd.choice((None, 0, 1, 2))
            history.append(get(asked, answered, None if value is None else b"%d" % value, value))
            continue
        answered = math.inf if rnd.random() < 0.3 else answered
        if rnd.random() < 0.3:
            condition = rnd.choice((Condition.NONE, Condition.IF_PRESENT))
            history.append(delete(asked, answered, None if answered == math.inf else number, condition))
            continue
        condition = rnd.choice((Condition.NONE, Condition.IF_VERSION, Condition.IF_ABSENT))
        expected = rnd.randrange(5) if condition is Condition.IF_VERSION else None
        version = None if answered == math.inf else number
        history.append(put(asked, answered, b"%d" % number, version, condition, expected))
    return history


def test_it_finds_what_trying_all_orders_finds():
    found = set()
    for seed in range(400):
        history = some_history(random.Random(seed))
        found.add(is_linearisable(history))
        assert is_linearisable(history) == by_trying_all(history), history
    assert found == {True, False}


def test_a_long_history_of_many_clients_is_decided():
    """Five clients who each put and get in turn, all at once, two hundred times."""
    history, moment = [], itertools.count()
    for number in range(200):
        asked = [next(moment) for _ in range(5)]
        version = 5 * number
        history += [put(at, next(moment), b"%d" % (version + i), version + i) for i, at in enumerate(asked)]
        last = version + 4
        history.append(get(next(moment), next(moment), b"%d" % last, last))
    assert is_linearisable(history)


@pytest.mark.slow
def test_what_cannot_be_decided_says_so():
    history = [put(number, math.inf, b"%d" % number) for number in range(40)]
    history += [get(100, 101, b"7", 1), get(102, 103, b"nothing", 2), refused(104, 105, 99, Condition.IF_ABSENT)]
    with pytest.raises(Undecided):
        is_linearisable(history)
