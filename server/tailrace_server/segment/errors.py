"""The error of a segment that the server cannot read."""

from __future__ import annotations

from tailrace.errors import TailraceError


class SegmentDamaged(TailraceError):
    """A segment's file has changed since it was written, or the disk can't read it. Other segments are not concerned.

    ``path`` is the file, ``offset`` the begin of the damaged part in bytes, ``why`` the problem found there.
    """

    def __init__(self, path: str, offset: int, why: str) -> None:
        super().__init__(f"the segment {path} is damaged at offset {offset}: {why}; put a good copy in its place")
        self.path = path
        self.offset = offset
        self.why = why
