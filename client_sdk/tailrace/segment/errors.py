"""The error of bytes that are no segment."""

from __future__ import annotations


class SegmentFormatError(ValueError):
    """Bytes that are no valid part of a segment; the message says why."""
