"""The errors of a compaction. Its inputs are unchanged then."""

from __future__ import annotations

from tailrace.errors import TailraceError


class BadTask(TailraceError):
    """A task or a result is invalid: of another version, incomplete, or in conflict with its segments."""


class CompactionFailed(TailraceError):
    """The process of a compaction ended without a result. The message has its output."""
