"""Whatever goes wrong, every promise holds, and what is hard together has met. Longer: `make simulate SECONDS=...`."""

import pytest

from .crosses import ALL, RARE
from .report import Report
from .suite import QUICK, ROLLBACKS, SEEDS, run_the_others
from .world import simulate

pytestmark = pytest.mark.slow

# Operations of sinks that come by chance.
OF_SINKS = ("batch published again", "batch of another checkpoint refused", "stage that nobody publishes")


def run(seeds):
    """What happened in all of them; what goes wrong names its seed."""
    report = Report()
    for seed in seeds:
        report.add(simulate(seed))
    print(report)
    return report


def test_some_seeds_keep_every_promise():
    report = run(QUICK)
    assert report.operations["barrier"] > 10 * len(QUICK)
    assert report.operations["batch published"] > len(QUICK)
    assert report.lost_rows, "nothing was lost with level memory: power cuts come too late"


@pytest.mark.planted
def test_some_more_seeds_cover_each_cross():
    """Runs ten seeds, and more until everything was met: each change of the program makes another run of a seed.

    One batch in ten comes from a new checkpoint, and half of the runs have a sink, with about three batches: of ten
    seeds often none meets a batch that another checkpoint has published.
    """
    report = run(SEEDS[:10])
    for seed in SEEDS[10:30]:
        if not not_met(report):
            break
        report.add(simulate(seed))
    assert not not_met(report)


def not_met(report):
    """Returns the crosses and the operations of sinks that no run has met yet."""
    crosses = [cross for cross in ALL if cross not in (*report.crosses, *RARE)]
    return crosses + [operation for operation in OF_SINKS if not report.operations[operation]]


def test_a_seed_in_which_rollbacks_meet():
    """Each power cut comes as somebody reads again what the last one took."""
    report = run([ROLLBACKS])
    assert set(report.crosses) >= set(RARE)


@pytest.mark.soak
def test_the_other_seeds_keep_every_promise():
    run_the_others(SEEDS[len(QUICK) :])
