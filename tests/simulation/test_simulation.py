"""Whatever goes wrong, every promise holds, and what is hard together has met. Longer: `make simulate SECONDS=...`."""

import pytest

from .crosses import ALL, RARE
from .report import Report
from .suite import BATCH, QUICK, ROLLBACKS, SEEDS
from .world import simulate


def run(seeds):
    """What happened in all of them; what goes wrong names its seed."""
    report = Report()
    for seed in seeds:
        report.add(simulate(seed))
    print(report)
    return report


def test_ten_seeds_keep_every_promise_and_cover_each_cross():
    report = run(QUICK)
    assert set(report.crosses) | set(RARE) == set(ALL)
    assert report.operations["barrier"] > 10 * len(QUICK)
    assert report.lost_rows, "nothing was lost with level memory: power cuts come too late"


def test_a_seed_in_which_rollbacks_meet():
    """Each power cut comes as somebody reads again what the last one took."""
    report = run([ROLLBACKS])
    assert set(report.crosses) >= set(RARE)


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[len(QUICK) :: BATCH])
def test_the_other_seeds_keep_every_promise(first):
    run(range(first, first + BATCH))
