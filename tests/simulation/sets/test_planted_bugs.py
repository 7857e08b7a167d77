"""Each rule of promotion and quorum matters: without it a promise is broken, in a story of stories.py."""

import logging

import pytest
from tests.model.history import Violation

from .bugs import BUGS, planted
from .stories import STORIES
from .world import simulate

# Where each is found: a story, and the seed with which that is told.
FOUND_BY = {
    "no fencing": [("two_masters", 0)],
    "the term left out of the comparison": [("dead_tail", 0)],
    "an entry that counts from below its base": [("early_entry", 0)],
    "a majority without the leader, which leads again by itself": [("slow_leader", 0)],
    "a leader that leads again by itself": [("lone_restart", 0)],
    "a promise that is not durable": [("forgotten_promise", 0)],
    "a leader that asks nobody whether it leads": [("stale_leader", 0)],
    "level quorum that shows what a majority has not": [("dead_tail", 0)],
    "acknowledgements of another branch": [("returned_tail", 0)],
    "a run that is kept as far as it has come": [("half_a_run", 0), ("leader_of_half_a_run", 2)],
    "a rollback into the middle of a run": [("fork_in_a_run", 3)],
    "acknowledgements inside of a run, of what no majority has": [("run_without_an_end", 2)],
    "folding of what no majority has": [("folded_tail", 0)],
}


@pytest.fixture(autouse=True)
def no_logs():
    """Nodes say a lot about what is done to them here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_each_bug_is_found_somewhere():
    assert FOUND_BY.keys() == BUGS.keys()


@pytest.mark.parametrize(("bug", "story", "seed"), [(bug, *where) for bug in BUGS for where in FOUND_BY.get(bug, ())])
def test_a_planted_bug_is_found(bug, story, seed):
    with planted(bug), pytest.raises(Violation) as raised:
        simulate(seed, story=STORIES[story])
    assert any(note.startswith("make simulate SETS=1 SEED=") for note in raised.value.__notes__)
