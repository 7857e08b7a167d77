"""The simulator can fail: each of these bugs is found within the seeds of the suite."""

import pytest
from tests.model.history import Violation

from .bugs import BUGS, planted
from .suite import SEEDS
from .world import simulate

# A seed that has found it, to begin with.
FOUND_BY = {
    "an acknowledgement before fsync": 20,
    "`>` for `>=` at a base": 1,
    "a barrier answered one round early": 22,
    "a purge without raising the purge seq": 25,
    "a ring dropped after a refetch": 37,
}


def find(bug):
    """The first violation; None where no seed has one."""
    with planted(bug):
        for seed in (FOUND_BY[bug], *SEEDS):
            try:
                simulate(seed)
            except Violation as violation:
                return violation
    return None


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    violation = find(bug)
    assert violation is not None, f"no seed finds {bug}"
    assert any(note.startswith("make simulate SEED=") for note in violation.__notes__)
