"""Segments: immutable files of a partition's blocks, with an index by seq and one by key (docs/formats/segment.md).

page.py         a page of the key table, pure
format.py       the header and the trailer, pure
block_index.py  where each block lies, pure
identity.py     which stretch of which partition a segment is, pure
totals.py       what the rows come to, pure
key_table.py    all pages made of hash columns; rows found by hash, a few preads each
file.py         a file whose failures name the place; reads that do not wait for the disk
footer.py       what opening reads, verified
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
