"""Three nodes as processes, killed, stopped, cut off, promoted and handed over in any order, under clients.

``TAILRACE_REPLICAS_SEED=17 pytest tests/replicas`` repeats what a seed decides: what happens, and who asks for what.
When it happens in between all else is the machine's affair.
"""

from __future__ import annotations

import os
import random

import pytest

from .run import Scenario, run

SEEDS = range(100)


@pytest.fixture
def seed():
    """``TAILRACE_REPLICAS_SEED``, or any of a hundred. A run prints its own."""
    return int(os.environ.get("TAILRACE_REPLICAS_SEED") or random.choice(SEEDS))


@pytest.mark.slow
def test_a_set_keeps_its_promises_whatever_happens_to_its_nodes(seed, tmp_path):
    result = run(Scenario(seed, acts=24, directory=tmp_path))
    assert result.history.answers > 100
