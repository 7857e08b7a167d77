"""Whatever goes wrong, every promise holds; see world.py. The long run of the same is `make simulate SECONDS=...`."""

import pytest

from .world import simulate


@pytest.mark.parametrize("seed", range(10))
def test_a_seed(seed):
    report = simulate(seed)
    assert report.operations["apply"]
