"""Segments: immutable files of a partition's blocks, with an index by seq and one by key (docs/formats/segment.md).

page.py         a page of the key table, pure
format.py       the header and the trailer, pure
block_index.py  the place of each block, pure
identity.py     the stretch of a partition that a segment holds, pure
totals.py       counts and bounds of the rows, pure
key_table.py    all pages made of hash columns; rows found by hash, a few preads each
file.py         a file whose failures name the place; reads that do not wait for the disk
footer.py       the parts that opening reads, verified
writer.py       a segment written under a temporary name, then named
reader.py       a segment opened: blocks by seq, rows by key
verify.py       a segment read whole and compared with itself
"""

from __future__ import annotations

from tailrace_server.segment.errors import SegmentDamaged
from tailrace_server.segment.file import NotCached, Read, Reads, SegmentFile
from tailrace_server.segment.identity import NO_BASE, SegmentIdentity
from tailrace_server.segment.reader import Segment
from tailrace_server.segment.verify import Problem
from tailrace_server.segment.writer import SegmentWriter

__all__ = [
    "NO_BASE",
    "NotCached",
    "Problem",
    "Read",
    "Reads",
    "Segment",
    "SegmentDamaged",
    "SegmentFile",
    "SegmentIdentity",
    "SegmentWriter",
]
