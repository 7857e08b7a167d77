from __future__ import annotations

import pytest
from tests.tailrace_server.stored import StoredPartition


@pytest.fixture
def make_partition():
    """A function from an id to a partition without a journal."""
    return StoredPartition
