from __future__ import annotations

import itertools

import pytest
from tests.blocks_of_rows import Row, block_of, histories, rows_of


@pytest.fixture(scope="session")
def history():
    """A strategy of lists of (key, value or None, seq, timestamp)."""
    return histories()


@pytest.fixture(scope="session")
def make_block():
    """``block_of``."""
    return block_of


@pytest.fixture(scope="session")
def read_rows():
    """``rows_of``."""
    return rows_of


@pytest.fixture(scope="session")
def split():
    """Cuts a list into neighbouring parts, none of them empty."""

    def parts(rows: list[Row], cuts: list[int]) -> list[list[Row]]:
        borders = [0, *sorted({cut % len(rows) for cut in cuts} - {0}), len(rows)]
        return [rows[start:stop] for start, stop in itertools.pairwise(borders)]

    return parts
