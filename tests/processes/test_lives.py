"""A real server process that is killed again and again, under writers and readers, against a plain model."""

from __future__ import annotations

import pytest

from tailrace import Position, Positions
from tailrace.errors import VersionLost
from tailrace.indexes import MemoryIndex

from .lives import End, Life, Lives, LivesScenario
from .node import NodeFailed
from .program import Orders
from .run import run, seed_of
from .violation import Violation

pytestmark = pytest.mark.slow


@pytest.fixture
def seed():
    """A run prints its own."""
    return seed_of(1)


def test_few_kills(seed, tmp_path):
    result = run(lambda: Lives(LivesScenario(seed, tmp_path, kills=5)))
    assert result.group.kills == 5


@pytest.mark.soak
def test_many_kills(seed, tmp_path):
    result = run(lambda: Lives(LivesScenario(seed, tmp_path, kills=20)))
    assert result.group.kills == 20
    assert result.supervisor.kills_in_recovery >= 5


@pytest.mark.soak
def test_power_cuts(seed, tmp_path):
    """A process loses data that was not synced, so that writes acknowledged at level memory may be lost."""
    result = run(lambda: Lives(LivesScenario(seed, tmp_path, kills=12, forgets=True)))
    assert result.group.kills == 12


# The check can fail: each bug that is planted, in the nodes or here, is found.


# Ends that show a bug for certain. A kill at any moment, or a reader that happens to be there, shows it by luck.
HANGING = (Life(End.KILL_HANGING, 300, Orders(may_hang=True)),) * 2
FIRST_LIVES = {
    "resends_not_recognised": HANGING,  # of writes that were written and have no answer
    "last_block_forgotten": (Life(End.KILL_SETTLED, 300),),
    "no_new_branch": (Life(End.KILL, 300),),
}
FINDINGS = {
    "resends_not_recognised": "is there twice|was refused",
    "barrier_at_once": "a barrier came back",
    "conditions_not_checked": "was made at|was refused",
    "last_block_forgotten": None,
    "no_new_branch": "the last stop was unclean",
}
# These take longest to find, so make soak and make long run them.
LONG = {"conditions_not_checked"}
BUGS = [pytest.param(bug, marks=pytest.mark.soak) if bug in LONG else bug for bug in FINDINGS]


@pytest.mark.planted
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_of_a_node_is_found(bug, seed, tmp_path):
    lives = FIRST_LIVES.get(bug, ())
    # A start may be the first to see that a block is missing, and end the node.
    found = (Violation, NodeFailed) if bug == "last_block_forgotten" else Violation
    with pytest.raises(found, match=FINDINGS[bug]) as raised:
        run(lambda: Lives(LivesScenario(seed, tmp_path, kills=5, bug=bug, first_lives=lives)))
    assert raised.type is Violation or "is missing: that file has seqs" in str(raised.value)


@pytest.mark.planted
@pytest.mark.parametrize("bug", ["acknowledged_before_fsync", "shown_before_fsync"])
def test_a_bug_that_a_power_cut_shows_is_found(bug, seed, tmp_path):
    with pytest.raises((Violation, VersionLost)):  # a writer may be the first to hear that its version is gone
        run(lambda: Lives(LivesScenario(seed, tmp_path, kills=8, forgets=True, bug=bug, first_lives=HANGING * 3)))


@pytest.mark.planted
def test_a_position_one_too_high_is_found(seed, tmp_path, monkeypatch):
    parse = Positions.parse

    def one_too_high(text: str) -> Positions:
        positions = parse(text)
        higher = {p: Position.at(position.log, position.seq + 1) for p, position in positions.items() if position.seq}
        return positions.with_positions(higher)

    monkeypatch.setattr(Positions, "parse", one_too_high)
    with pytest.raises(Violation):
        run(lambda: Lives(LivesScenario(seed, tmp_path, kills=5, first_lives=(Life(End.KILL, 300),))))


@pytest.mark.planted
@pytest.mark.soak
def test_an_index_that_drops_a_row_is_found(seed, tmp_path, monkeypatch):
    apply = MemoryIndex.apply
    monkeypatch.setattr(MemoryIndex, "apply", lambda self, rows, checkpoint: apply(self, rows[1:], checkpoint))
    with pytest.raises(Violation, match="a MemoryIndex"):
        run(lambda: Lives(LivesScenario(seed, tmp_path, kills=2, first_lives=(Life(End.KILL, 300),))))
