"""Segments in memory: an identity, blocks of rows, a written segment; and pages so small that few rows need several."""

from __future__ import annotations

import os

import pytest
from tests.segment_fixtures import block_of, identity_of, one_file, small_pages

from tailrace_server.segment import SegmentWriter

__all__ = ["block_of", "identity_of", "one_file", "small_pages"]

PATH = "/feed/3/made.seg"


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
