"""Three nodes as processes, killed, paused, cut off, promoted and handed over in any order, under clients."""

from __future__ import annotations

import pytest

from .acts import Acts, ActsScenario
from .run import run, seed_of
from .violation import Violation

pytestmark = pytest.mark.slow


@pytest.fixture
def seed():
    """A run prints its own."""
    return seed_of(1)


@pytest.mark.soak
@pytest.mark.parametrize("failover", ["auto", "manual"])
def test_a_set_keeps_its_promises_whatever_happens_to_its_nodes(failover, seed, tmp_path):
    result = run(lambda: Acts(ActsScenario(seed, tmp_path, acts=24, failover=failover)))
    assert result.history.answers > 100


# The test can fail: each bug that is planted in the nodes is found, by acts that leave it no way out.


@pytest.mark.planted
@pytest.mark.soak
@pytest.mark.parametrize(
    ("bug", "first", "finding"),
    [
        # Two of the three never get the rows that were acknowledged, and one of the two leads: any reader may find that
        # first. The first write is there since a leader counts nothing, with this bug or without it, until the feed is
        # followed.
        ("quorum_at_once", ("write_anew", "cut_leader", "write_anew", "kill_leader", "promote_other"), None),
        # A former leader that does not know it is still asked: any client that asks it may be the first to find it.
        (
            "leads_unasked",
            ("write_anew", "cut_leader", "promote_other", "write_anew", "ask_former"),
            "a get at level quorum says|a barrier came back|is lost",
        ),
    ],
)
def test_a_bug_of_a_set_is_found(bug, first, finding, seed, tmp_path):
    with pytest.raises(Violation, match=finding):
        run(lambda: Acts(ActsScenario(seed, tmp_path, bug=bug, acts=0, first=first, failover="manual")))
