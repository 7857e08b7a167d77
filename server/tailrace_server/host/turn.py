"""The time of the current turn of the loop."""

from __future__ import annotations

from tailrace_server.host.clock import Clock


class Turn:
    """A monotonic time that is read once a turn, for durations of seconds. It is at most a tick old."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = clock.monotonic()

    def begin(self) -> float:
        """Reads the clock; returns the time in seconds."""
        self.now = self._clock.monotonic()
        return self.now
