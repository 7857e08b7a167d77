from __future__ import annotations

import pytest
from tests import blocks_of_rows
from tests.block_fixtures import history, make_block, split

__all__ = ["history", "make_block", "split"]


@pytest.fixture(scope="session")
def read_rows():
    """``rows_of``."""
    return blocks_of_rows.rows_of
