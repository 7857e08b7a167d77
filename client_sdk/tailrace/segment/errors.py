"""The errors of bytes that are no segment."""

from __future__ import annotations


class SegmentFormatError(ValueError):
    """Bytes that are no valid part of a segment; the message says why."""


class UnknownSegmentVersion(SegmentFormatError):
    """The file has a version of the segment that this program does not know."""
