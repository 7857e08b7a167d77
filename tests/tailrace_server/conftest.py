"""The disk in memory, for every test of the server."""

from __future__ import annotations

import pytest
from tests.memory_disk import MemoryDisk


@pytest.fixture(scope="session")
def memory_disk() -> type[MemoryDisk]:
    """The class, so that property tests make a new disk for each example."""
    return MemoryDisk
