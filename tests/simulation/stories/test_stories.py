"""With all rules in place no story breaks a promise. `planted/test_planted_bugs.py` tells them without a rule."""

import pytest

from ..world import simulate
from .table import STORIES


@pytest.mark.long
@pytest.mark.parametrize("story", STORIES)
def test_with_all_rules_a_story_breaks_no_promise(story):
    report = simulate(0, story=STORIES[story])
    assert not STORIES[story].has_sink or report.operations["batch published"]
