"""The simulator can fail: each of these bugs is found within the seeds of the suite."""

import pytest
from tests.processes.violation import Violation

from ..suite import SEEDS
from ..world import simulate
from .streams import BUGS, planted

pytestmark = pytest.mark.slow

# A seed that has found it, to begin with.
FOUND_BY = {
    "an acknowledgement before fsync": 22,
    "`>` for `>=` at a base": 0,
    "a barrier answered one round early": 3,
    "a purge without raising the purge seq": 112,
    "a ring dropped after a refetch": 102,
    "a publish that forgets its batch": 5,
    "a manifest without the last batches": 3,
    "a publish that is journaled block by block": 58,
    "a publish that anybody may stand inside of": 6,
    "a stage that is sealed before it is durable": 8,
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


@pytest.mark.planted
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug):
    violation = find(bug)
    assert violation is not None, f"no seed finds {bug}"
    assert any(note.startswith("make simulate SEED=") for note in violation.__notes__)
