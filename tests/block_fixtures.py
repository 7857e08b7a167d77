"""The fixtures of tests of blocks, for the folders of the client and of the server."""

from __future__ import annotations

import pytest
from tests import blocks_of_rows


@pytest.fixture(scope="session")
def history():
    """A strategy of lists of (key, value or None, seq, timestamp)."""
    return blocks_of_rows.histories()


@pytest.fixture(scope="session")
def make_block():
    """Makes a block of such rows of partition 3."""
    return blocks_of_rows.block_of


@pytest.fixture(scope="session")
def split():
    """Cuts a list into neighbouring parts, none of them empty."""
    return blocks_of_rows.split
