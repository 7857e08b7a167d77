"""Segments, as the server writes and reads them; `tailrace.segment` has the format and the decoder.

totals.py    counts and bounds of the rows, pure
file.py      a file whose failures name the place; reads that do not wait for the disk
writer.py    a segment written under a temporary name, then named
reader.py    a segment opened through a disk; looked up without waiting for it
verify.py    a segment read whole and compared with itself
file_sum.py  a segment's file compared with its checksum, piece by piece
read_cache.py  parts of segments that look-ups have read
"""

from __future__ import annotations

from tailrace.segment.identity import NO_BASE, SegmentIdentity
from tailrace_server.segment.errors import SegmentDamaged
from tailrace_server.segment.file import NotCached, Read, Reads, SegmentFile
from tailrace_server.segment.file_sum import FileSum
from tailrace_server.segment.read_cache import ReadCache
from tailrace_server.segment.reader import Segment
from tailrace_server.segment.verify import Problem
from tailrace_server.segment.writer import SegmentWriter

__all__ = [
    "NO_BASE",
    "FileSum",
    "NotCached",
    "Problem",
    "Read",
    "ReadCache",
    "Reads",
    "Segment",
    "SegmentDamaged",
    "SegmentFile",
    "SegmentIdentity",
    "SegmentWriter",
]
