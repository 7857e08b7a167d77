"""The fixtures of tests of segments, for the folders of the client and of the server."""

from __future__ import annotations

import pytest
from tests import segments


@pytest.fixture(scope="session")
def one_file():
    return segments.OneFile


@pytest.fixture(scope="class")
def small_pages():
    """Pages of 4 entries, 64 bytes."""
    with segments.small_pages():
        yield


@pytest.fixture(scope="session")
def identity_of():
    """Makes the identity of a minor segment of partition 3."""
    return segments.identity_of


@pytest.fixture(scope="session")
def block_of():
    """Makes a block of partition 3 of rows (key, value or None, seq, timestamp)."""
    return segments.block_of


def flip(path, place):
    """Flips a bit of the byte at ``place`` of a file."""
    with open(path, "r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))
