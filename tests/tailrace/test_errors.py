"""Errors can be copied and pickled, as pools of processes do with the error of a task."""

import copy
import pickle

import pytest

import tailrace
from tailrace import EndReason

ERRORS = [
    *(
        getattr(tailrace, name)("why")
        for name in tailrace.__all__
        if isinstance(getattr(tailrace, name), type)
        and issubclass(getattr(tailrace, name), tailrace.TailraceError)
        and name != "StreamEnded"
    ),
    tailrace.Unreachable("why", outcome="unknown"),
    tailrace.NotLeader("why", leader="localhost:4700"),
    tailrace.VersionConflict("why", current=tailrace.Version(1, bytes(16), 2)),
    tailrace.DataGone("why", first_seq=7),
    tailrace.StreamEnded("why", reason=EndReason.ROLLED_BACK),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copy_has_the_text_and_the_fields(error, copied):
    found = copied(error)
    assert type(found) is type(error)
    assert str(found) == "why"
    assert vars(found) == vars(error)
