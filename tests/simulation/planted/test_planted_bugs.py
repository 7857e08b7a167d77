"""The simulator can fail: it finds each planted bug, in a story or in a seed of one node."""

import re
from pathlib import Path

import pytest
from tests.processes.violation import Violation

from ..stories.table import STORIES
from ..suite import ONE_NODE
from ..world import simulate
from .table import BUGS

RULES = Path(__file__).parents[2] / "README.md"
ANY_STORY = ""
# How many seeds a story is told with, at most: a change of the product changes each seed's run, and most runs of a
# story show its bug.
TRIES = 6
TRIES_OF_COPIES = 40
RUNS = [(bug, story) for bug in BUGS for story in (BUGS[bug].stories or [ANY_STORY])]


def test_each_bug_is_in_the_table_of_rules():
    table = RULES.read_text().partition("| rule | planted | found by |\n")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
    told = {bug: runs.replace("`", "").split(", ") for bug, runs in rows if bug != "---"}
    assert told == {name: bug.found_by for name, bug in BUGS.items()}


@pytest.mark.planted
@pytest.mark.slow
@pytest.mark.parametrize(("name", "story"), RUNS)
def test_a_planted_bug_is_found(name, story):
    violation = first_violation(BUGS[name], STORIES.get(story))
    assert violation is not None, "no seed finds the bug"
    assert not story or not STORIES[story].has_sink or "sink" in str(violation)
    assert any(note.startswith("make simulate ") for note in violation.__notes__)


def first_violation(bug, story):
    """Returns the first broken promise; None: no seed breaks one. Any other error is raised."""
    seeds, options = (bug.seed, *ONE_NODE.seeds), {"story": story}
    if story:
        seeds = range(bug.stories[story.name], bug.stories[story.name] + TRIES)
    elif bug.copies is not None:
        nodes, first = bug.copies
        seeds, options = range(first, first + TRIES_OF_COPIES), {"nodes": nodes, "copies": True}
    elif bug.groups is not None:
        seeds, options = range(bug.groups, bug.groups + TRIES), {"groups": True}
    for seed in seeds:
        try:
            with bug.planted():
                simulate(seed, **options)
        except Violation as violation:
            return violation
    return None
