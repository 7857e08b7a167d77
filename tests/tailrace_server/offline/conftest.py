"""A directory of a stopped node, for every test of the offline tools: they work on forks of its disk."""

from __future__ import annotations

import pytest
from tests.tailrace_server.offline.damage import make_directory


@pytest.fixture(scope="session")
def stopped():
    made = make_directory()
    made.stop()
    return made
