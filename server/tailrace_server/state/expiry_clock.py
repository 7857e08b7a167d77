"""The clock by which keys expire. Pure.

It is the node's wall clock. If that jumps ahead by more than an hour while the node runs, it counts as an hour ahead
until the next start: a broken time server deletes no keys that have years to go. A clock that is set back makes keys
expire later, never earlier.
"""

from __future__ import annotations

from tailrace_server.state.ahead import JUMP_US_MAX


class ExpiryClock:
    """The time in microseconds since 1970 UTC, as far as it can be believed; ``monotonic_us`` counts from any point."""

    def __init__(self, wall_us: int, monotonic_us: int) -> None:
        self._line_us = wall_us - monotonic_us

    def now_us(self, wall_us: int, monotonic_us: int) -> int:
        """Returns the time by which keys are due."""
        # A clock that is set back by hours, and later right again, has not jumped ahead.
        return min(wall_us, self._line_us + monotonic_us + JUMP_US_MAX)
