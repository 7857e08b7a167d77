"""Checks a register: whether its operations, with their answers, could have happened one after the other.

Each operation happens at one moment between its request and its answer. An operation without an answer happens at any
moment after its request, or never. The search is that of Wing and Gong, with Lowe's memory: the next operation is any
one whose request came before the first answer of those that are left, and no pair of (operations that have happened,
state after them) is tried twice.

The state is (value, version). A write without an answer leaves a value of unknown version: the next answer that names
the value's version tells it. That is why a step returns a state, and not only whether an answer fits.
"""

from __future__ import annotations

import enum
import math
from typing import Any, NamedTuple

# How many pairs are tried at most. A history with too many unanswered writes is given up, and counted as undecided.
PAIRS_MAX = 100_000


class Kind(enum.Enum):
    GET = "get"
    PUT = "put"
    DELETE = "delete"


class Condition(enum.Enum):
    NONE = "none"
    IF_VERSION = "if version"
    IF_ABSENT = "if absent"
    IF_PRESENT = "if present"


class Outcome(enum.Enum):
    DONE = "done"  # a write: written as ``version``; a get: found so, ``version`` None: there was no value
    REFUSED = "refused"  # the condition did not hold: the key was at ``version``, None: not there
    UNKNOWN = "unknown"


class Operation(NamedTuple):
    """``asked`` and ``answered`` are moments on one clock; no two are the same. ``expected`` is that of IF_VERSION.

    ``who``: for people.
    """

    kind: Kind
    asked: float
    answered: float = math.inf
    outcome: Outcome = Outcome.UNKNOWN
    value: bytes | None = None
    version: Any = None
    condition: Condition = Condition.NONE
    expected: Any = None
    who: str = ""

    def __str__(self) -> str:
        def shown(version: Any) -> str:
            return f"{version.branch.hex()[:6]}:{version.seq}" if hasattr(version, "seq") else str(version)

        condition = "" if self.condition is Condition.NONE else f" {self.condition.value}"
        expected = "" if self.expected is None else f" {shown(self.expected)}"
        value = "" if self.value is None else f" {self.value[:20].rstrip(bytes(1)).decode(errors='replace')}"
        moments = f"{self.asked:>5}-{self.answered:<5}"
        asked = f"{moments} {self.kind.value}{value}{condition}{expected}"
        return f"{asked} -> {self.outcome.value} {shown(self.version)} {self.who}"


class State(NamedTuple):
    value: bytes | None = None
    version: Any = None  # None: unknown, or there is no value


class Undecided(Exception):
    """Too many ways to try."""


def owned_versions(history: list[Operation]) -> frozenset:
    """Returns the versions of answered writes: no write without an answer has one of them."""
    return frozenset(
        it.version
        for it in history
        if it.kind is not Kind.GET and it.outcome is Outcome.DONE and it.version is not None
    )


def step(state: State, operation: Operation, owned: frozenset) -> State | None:
    """Returns the state after an operation; None: its answer is impossible in ``state``."""
    if operation.kind is Kind.GET:
        return _told(state, operation.value, operation.version, owned)
    if operation.outcome is Outcome.REFUSED:
        return _refused(state, operation, owned)
    if operation.condition is Condition.IF_VERSION:
        if state.value is None or _told(state, state.value, operation.expected, owned) is None:
            return None
    elif operation.condition is Condition.IF_ABSENT:
        if state.value is not None:
            return None
    elif operation.condition is Condition.IF_PRESENT and state.value is None:
        return None
    if operation.kind is Kind.DELETE:
        return State()
    return State(operation.value, operation.version)


def _told(state: State, value: bytes | None, version: Any, owned: frozenset) -> State | None:
    """Returns the state if it can be that of the answer; None: it cannot."""
    if state.value != value:
        return None
    if value is None:
        return state
    may_be = version not in owned if state.version is None else state.version == version
    return State(value, version) if may_be else None


def _refused(state: State, operation: Operation, owned: frozenset) -> State | None:
    """Returns the state if the condition fails in it, at ``operation.version``; None: it holds."""
    if operation.version is None:
        may_be = operation.condition in (Condition.IF_VERSION, Condition.IF_PRESENT)
        return state if state.value is None and may_be else None
    if state.value is None or operation.condition is Condition.IF_PRESENT:
        return None
    if operation.condition is Condition.IF_VERSION and operation.version == operation.expected:
        return None
    return _told(state, state.value, operation.version, owned)


def is_linearisable(history: list[Operation]) -> bool:
    """Returns whether an order explains all answers. ``history`` is that of one key, absent at first.

    Raises:
        Undecided: There are too many orders to try.
    """
    operations = sorted(_that_tell(history), key=lambda operation: operation.asked)
    needed = sum(1 << number for number, operation in enumerate(operations) if operation.answered < math.inf)
    owned = owned_versions(history)
    begin = (0, State())
    seen, todo = {begin}, [begin]
    while todo:
        done, state = todo.pop()
        if done & needed == needed:
            return True
        for following in _following(operations, done, state, owned):
            if following not in seen:
                seen.add(following)
                todo.append(following)
        if len(seen) > PAIRS_MAX:
            raise Undecided(f"{len(operations)} operations, and more than {PAIRS_MAX} ways")
    return False


def _following(operations, done, state, owned):
    """Returns the operations that may come next, the first one to try at the end."""
    latest = math.inf
    candidates = []
    for number, operation in enumerate(operations):
        if done >> number & 1:
            continue
        if operation.asked > latest:
            break
        latest = min(latest, operation.answered)
        candidates.append(number)
    found = []
    for number in candidates:
        operation = operations[number]
        after = step(state, operation, owned) if operation.asked <= latest else None
        if after is not None:
            found.append((operation.answered, number, (done | 1 << number, after)))
    return [pair for _, _, pair in sorted(found, key=lambda it: it[:2], reverse=True)]


def _that_tell(history):
    """Returns the history without unanswered gets."""
    return [it for it in history if it.kind is not Kind.GET or it.outcome is not Outcome.UNKNOWN]


def explain(history: list[Operation]) -> str:
    """Returns the shortest beginning of ``history``, by answers, that no order explains, for a message."""
    answered = sorted(operation.answered for operation in history if operation.answered < math.inf)
    for end in answered:
        beginning = [
            operation if operation.answered <= end else operation._replace(answered=math.inf, outcome=Outcome.UNKNOWN)
            for operation in history
            if operation.asked <= end
        ]
        beginning = [it if it.outcome is not Outcome.UNKNOWN else it._replace(version=None) for it in beginning]
        if not is_linearisable(beginning):
            return "\n".join(map(str, sorted(beginning, key=lambda it: it.asked)))
    return "it is linearisable"
