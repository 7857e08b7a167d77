"""What goes wrong with a segment."""

from __future__ import annotations

from tailrace.errors import TailraceError


class SegmentFormatError(ValueError):
    """Bytes that are not what they should be; the message says in which way."""


class SegmentDamaged(TailraceError):
    """A segment's file is not what was written, or the disk can't read it. Other segments are not concerned.

    ``path`` is the file, ``offset`` where in it (bytes) the damaged part begins, ``why`` what is wrong there.
    """

    def __init__(self, path: str, offset: int, why: str) -> None:
        super().__init__(f"the segment {path} is damaged at offset {offset}: {why}; put a good copy in its place")
        self.path = path
        self.offset = offset
        self.why = why
