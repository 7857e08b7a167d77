"""Three nodes as processes, killed, stopped, cut off, promoted and handed over in any order, under clients.

``TAILRACE_REPLICAS_SEED=17 pytest tests/replicas`` runs another seed than the suite does, ``any`` any of a hundred. It
decides what happens, and who asks for what. When it happens in between all else is the machine's affair.
"""

from __future__ import annotations

import pytest
from tests.processes.violation import Violation
from tests.seeds import seed_of

from .run import Scenario, run

pytestmark = pytest.mark.slow


@pytest.fixture
def seed():
    """A run prints its own."""
    return seed_of("TAILRACE_REPLICAS_SEED", 1)


@pytest.mark.soak
def test_a_set_keeps_its_promises_whatever_happens_to_its_nodes(seed, tmp_path):
    result = run(Scenario(seed, acts=24, directory=tmp_path))
    assert result.history.answers > 100


# The test can fail: each bug that is planted in the nodes is found, by steps that leave it no way out.


@pytest.mark.planted
@pytest.mark.soak
@pytest.mark.parametrize(
    ("bug", "first", "finding"),
    [
        # Two of the three never get what was acknowledged, and one of them leads: anybody may find that first.
        # The first write: of a feed that nobody has followed yet a leader counts nothing, with this bug or without it.
        ("quorum_at_once", ("write_anew", "cut_leader", "write_anew", "kill_leader", "promote_other"), None),
        # One that leads no more, and does not know it, is still asked: whoever does so may be the first.
        (
            "leads_unasked",
            ("write_anew", "cut_leader", "promote_other", "write_anew", "ask_former"),
            "a get at level quorum says|a barrier came back",
        ),
    ],
)
def test_a_bug_of_the_nodes_is_found(bug, first, finding, seed, tmp_path):
    with pytest.raises(Violation, match=finding):
        run(Scenario(seed, acts=0, directory=tmp_path, first=first, bug=bug))
