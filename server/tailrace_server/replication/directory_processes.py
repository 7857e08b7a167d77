"""The processes that have followed from each data directory, by their tokens. Pure.

A process that has ended does not ask again. So if one asks after a later one, two of them run: one on a directory, and
one on a copy of it. The order stays known after a process has gone, and after a change of leadership.
"""

from __future__ import annotations

# The former processes of a directory that are remembered, newest first. One that is older must have been paused for as
# many restarts.
FORMER_MAX = 16
# The directories that are remembered; then the one that has not followed for the longest time goes.
DIRECTORIES_MAX = 1_024


class DirectoryProcesses:
    """Only its own methods change its fields."""

    def __init__(self) -> None:
        self._of: dict[bytes, dict[bytes, bool]] = {}  # newest first; whether the log tells of two

    def follows(self, placement_id: bytes, start: bytes) -> None:
        """Notes that the process with the token ``start`` follows from a directory, and no former one.

        A process of an earlier version has no token, b"", and is not told from others.
        """
        known = self._of.pop(placement_id, {})
        if start and next(iter(known), b"") != start:
            known = {start: False, **known}
            while len(known) > 1 + FORMER_MAX:
                known.popitem()
        if known:
            self._of[placement_id] = known
        if len(self._of) > DIRECTORIES_MAX:
            del self._of[next(iter(self._of))]

    def is_former(self, placement_id: bytes, start: bytes) -> bool:
        """Returns whether a later process has followed from the directory."""
        known = self._of.get(placement_id, {})
        return start in known and next(iter(known)) != start

    def told_of(self, placement_id: bytes, start: bytes) -> bool:
        """Notes that the log tells of a former process. Returns whether it did so before."""
        known = self._of[placement_id]
        before, known[start] = known[start], True
        return before
