"""What goes wrong with a compaction. The segments that were to be folded are untouched then."""

from __future__ import annotations

from tailrace.errors import TailraceError


class BadTask(TailraceError):
    """A task, or a result, that cannot be: of another version, incomplete, or against the segments that it names."""


class CompactionFailed(TailraceError):
    """The process of a compaction ended without a result; what it said is in the message."""
