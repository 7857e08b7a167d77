"""Segments in memory: an identity, blocks of rows, a written segment; and pages so small that few rows need several."""

from __future__ import annotations

import os

import pytest
from tests import segments

from tailrace_server.segment import SegmentWriter

PATH = "/feed/3/made.seg"


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


@pytest.fixture(scope="session")
def written(memory_disk, identity_of):
    """Writes blocks into a segment of a new disk; the bytes of its file."""

    def write(blocks, **members):
        disk = memory_disk()
        disk.make_directory(os.path.dirname(PATH))
        last_seq = blocks[-1].header.last_seq if blocks else 9
        writer = SegmentWriter(disk, PATH, identity_of(**({"last_seq": last_seq} | members)))
        for block in blocks:
            writer.add(block)
        writer.finish()
        assert disk.names(os.path.dirname(PATH)) == [os.path.basename(PATH)]
        return bytes(disk.content(PATH))

    return write
