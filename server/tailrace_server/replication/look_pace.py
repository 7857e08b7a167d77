"""Chooses the pauses between the looks of a member without a leader. Pure.

A promotion takes some milliseconds, and until this member follows the new leader, writes at quorum may wait for it. So
while another member is being promoted, looks follow each other quickly; only some of them, since it may hang.
"""

from __future__ import annotations

# The length of a quick pause, as a part of a usual one.
QUICK = 0.1
# So many quick pauses follow each other: together two usual ones.
QUICK_MAX = 20
_PROMOTED = "is_promoted"  # the case of election.py


class LookPace:
    """The pace of one member's looks. Only its own methods change its fields."""

    def __init__(self) -> None:
        self._quick = 0  # pauses in a row

    def pause(self, case: str) -> float:
        """Returns the length of the pause after a look that led to ``case``, as a part of a usual one."""
        if case != _PROMOTED:
            self._quick = 0
            return 1.0
        self._quick += 1
        return QUICK if self._quick <= QUICK_MAX else 1.0
