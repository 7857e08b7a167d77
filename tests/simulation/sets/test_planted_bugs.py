"""Each rule of promotion and quorum matters: without it a promise is broken, in a story or by a seed."""

import logging

import pytest
from tests.model.history import Violation

from .bugs import BUGS, planted
from .stories import STORIES
from .world import simulate

# How each is found: a seed, and the story or the profile that it is a run of.
FOUND_BY = {
    "no fencing": (0, {"story": STORIES["two_masters"]}),
    "the term left out of the comparison": (0, {"story": STORIES["dead_tail"]}),
    "an entry that counts from below its base": (0, {"story": STORIES["early_entry"]}),
    "a majority without the leader, which leads again by itself": (0, {"story": STORIES["slow_leader"]}),
    "a leader that leads again by itself": (0, {"story": STORIES["lone_restart"]}),
    "a promise that is not durable": (0, {"story": STORIES["forgotten_promise"]}),
    "a leader that asks nobody whether it leads": (0, {"story": STORIES["stale_leader"]}),
    "level quorum that shows what a majority has not": (0, {"story": STORIES["dead_tail"]}),
}


@pytest.fixture(autouse=True)
def no_logs():
    """Nodes say a lot about what is done to them here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    seed, options = FOUND_BY[bug]
    with planted(bug), pytest.raises(Violation) as raised:
        simulate(seed, **options)
    assert any(note.startswith("make simulate SETS=1 SEED=") for note in raised.value.__notes__)
