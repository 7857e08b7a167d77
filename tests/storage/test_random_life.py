"""Long lives with crashes, full disks, failing calls and rotten segments; a seed that fails stands in the error."""

from __future__ import annotations

import pytest
from tests.tiers import first_in_test

from .life import LOUD, QUIET, live

KINDS = {
    "crashes": {**QUIET, "crash": 5},
    "faults": {**QUIET, **LOUD},
    "rot": {**QUIET, "crash": 2, "rot": 1},
    "descriptors": {**QUIET, "crash": 2, "starve": 4},
    "all": {**QUIET, **LOUD, "rot": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_in_test(range(8), 2))
@pytest.mark.parametrize("kind", KINDS)
async def test_a_life(kind, seed):
    assert await live(seed, 120, KINDS[kind]) > 1
