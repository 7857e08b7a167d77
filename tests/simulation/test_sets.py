"""Whatever goes wrong with a set, every promise holds. Longer: `make simulate SETS=1 SECONDS=...`."""

import pytest

from .set_report import SetReport
from .set_suite import QUICK, SEEDS
from .set_world import simulate
from .stories.table import STORIES
from .suite import run_the_others


def run(seeds):
    """What happened in all of them; what goes wrong names its seed."""
    report = SetReport()
    for seed in seeds:
        report.add(simulate(seed))
    print(report)
    return report


@pytest.mark.slow
def test_some_seeds_keep_every_promise():
    report = run(QUICK)
    done = report.operations
    assert done["register checked"] >= len(QUICK)
    assert done["barrier"] > 2 * len(QUICK)
    assert done["promotion"]
    assert done["a node leads"] > len(QUICK)
    assert done["state of a follower"]
    assert done["batch published"]
    assert not report.undecided


@pytest.mark.soak
def test_the_other_seeds_keep_every_promise():
    run_the_others(SEEDS[len(QUICK) :], SETS="1")


@pytest.mark.long
@pytest.mark.parametrize("story", STORIES)
def test_with_all_rules_a_story_breaks_no_promise(story):
    simulate(0, story=STORIES[story])


@pytest.mark.slow
def test_a_seed_replays():
    assert simulate(2).digest == simulate(2).digest
