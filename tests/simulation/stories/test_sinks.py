"""What a set remembers of batches matters: without it one is there twice, or in part. Stories of the shortest ways."""

import pytest
from tests.processes.violation import Violation

from ..planted.leadership import planted
from ..planted.publishing import BUGS
from ..set_world import simulate
from .sinks import (
    STORIES,
    deposed_publisher,
    interrupted_parts,
    interrupted_publishes,
    lost_publish,
    restless_leaders,
)

pytestmark = pytest.mark.slow

# A story, and the seed with which it is told.
FOUND_BY = {
    "last batches that followers are not told": (restless_leaders, 0),
    "parts of a batch that followers are not told": (interrupted_parts, 0),
    "a batch that is remembered by feed": (interrupted_publishes, 0),
    "a last batch that outlives a rollback": (lost_publish, 0),
    "a publish that goes on in another term": (deposed_publisher, 3),
}


@pytest.mark.long
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_with_all_rules_a_batch_is_there_once(story):
    assert simulate(0, story=story).operations["batch published"]


@pytest.mark.planted
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    story, seed = FOUND_BY[bug]
    with planted(bug, BUGS), pytest.raises(Violation, match="sink"):
        simulate(seed, story=story)
