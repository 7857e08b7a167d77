from __future__ import annotations

import copy
import inspect
import pickle
import typing

import pytest

import tailrace
from tailrace import Mutation, Version
from tailrace.consuming import subscription
from tailrace.consuming.partition import ConsumerState
from tailrace.link.finder import STATES
from tailrace.model import Level
from tailrace.model.tokens import ROLES
from tailrace.model.values import mutations_of
from tailrace.requests.senders import SEAL_LEVELS

BRANCH = bytes(range(16))
PLAIN = Mutation(b"k", b"v", 7, 1_000, False)
MADE = mutations_of(3, BRANCH)(b"k", b"v", 7, 1_000, False)


def test_a_delivered_mutation_knows_its_version():
    assert MADE.version == Version(3, BRANCH, 7)
    assert MADE._replace(seq=8).version == Version(3, BRANCH, 8)


def test_it_is_a_mutation_like_any_other():
    assert MADE == PLAIN
    assert hash(MADE) == hash(PLAIN)
    assert repr(MADE) == repr(PLAIN)
    assert isinstance(MADE, Mutation)
    match MADE:
        case Mutation(key, value):
            assert (key, value) == (b"k", b"v")
    assert mutations_of(3, BRANCH) is type(MADE)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))], ids=["copy", "deep", "pickle"]
)
def test_a_copy_keeps_the_version(copied):
    found = copied(MADE)
    assert found == MADE
    assert found.version == MADE.version
    assert copied(PLAIN) == PLAIN


def test_one_that_a_program_has_made_knows_none():
    with pytest.raises(ValueError, match="at seq 7 is not known: no stream has delivered it"):
        _ = PLAIN.version


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (tailrace.LevelName, [level.name.lower() for level in Level]),
        (tailrace.SealLevel, SEAL_LEVELS),
        (tailrace.NodeState, STATES),
        (tailrace.StreamState, [state.value for state in ConsumerState]),
        (tailrace.TokenRole, ROLES),
        (tailrace.OnRollback, subscription._ON_ROLLBACK),
        (tailrace.CatchUpMode, subscription._CATCH_UP),
        (tailrace.OnDataGone, subscription._ON_DATA_GONE),
    ],
)
def test_type_checkers_know_the_words_that_calls_take(words, taken):
    assert list(typing.get_args(words)) == list(taken)


@pytest.mark.parametrize("call", ["put", "consume", "follow", "write_arrow"])
def test_calls_name_these_types(call):
    annotations = inspect.signature(getattr(tailrace.Feed, call)).parameters
    named = {name: str(parameter.annotation) for name, parameter in annotations.items()}
    assert "LevelName" in named.get("level", named.get("visibility"))
