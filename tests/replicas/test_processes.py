"""Three nodes as processes, killed, stopped, cut off, promoted and handed over in any order, under clients.

``TAILRACE_REPLICAS_SEED=17 pytest tests/replicas`` repeats what a seed decides: what happens, and who asks for what.
When it happens in between all else is the machine's affair.
"""

from __future__ import annotations

import os
import random

import pytest

from .history import Violation
from .run import Scenario, run

SEEDS = range(100)


@pytest.fixture
def seed():
    """``TAILRACE_REPLICAS_SEED``, or any of a hundred. A run prints its own."""
    return int(os.environ.get("TAILRACE_REPLICAS_SEED") or random.choice(SEEDS))


@pytest.mark.slow
def test_a_set_keeps_its_promises_whatever_happens_to_its_nodes(seed, tmp_path):
    result = run(Scenario(seed, acts=24, directory=tmp_path))
    assert result.history.answers > 100


# The test can fail: each bug that is planted in the nodes is found.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "first", "finding"),
    [
        # Two of the three never get what was acknowledged, and one of them leads: anybody may find that first.
        ("quorum_at_once", ("cut_leader", "kill_leader", "promote_other"), None),
        # One that leads no more, and does not know it, is still asked by whoever was connected to it.
        ("leads_unasked", ("write_anew", "cut_leader", "promote_other", "write_anew"), "a get at level quorum says"),
    ],
)
def test_a_bug_of_the_nodes_is_found(bug, first, finding, seed, tmp_path):
    with pytest.raises(Violation, match=finding):
        run(Scenario(seed, acts=0, directory=tmp_path, first=first, bug=bug))
