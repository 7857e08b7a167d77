"""The credit of a consumer: the bytes of handled events, which the node may send again. Pure."""

from __future__ import annotations

# Handled bytes are credited within this time, however few they are: the node tells by the credit how far a consumer is
# behind. A frame a second costs nothing.
CREDIT_SECONDS = 1.0


class Credit:
    """The handled bytes of one connection that are not credited yet. Only this file sets its fields.

    Attributes:
        wants_to_send: The shell sends, though events are at hand: the first bytes since the last sending were handled,
            or enough for a credit. Otherwise a slow program would tell nothing of the events that came together.
    """

    def __init__(self, now: float) -> None:
        """``now``: monotonic seconds, as in the other methods."""
        self.wants_to_send = False
        self._bytes = 0
        self._bytes_min = 1  # the least that is credited at once
        self._credited_at = now  # fewer are credited CREDIT_SECONDS after this

    def begin(self, window_bytes: int) -> None:
        """Notes the window of a node that has said hello: a quarter of it is credited at once."""
        self._bytes_min = max(window_bytes // 4, 1)

    def leave(self) -> None:
        """Has all bytes credited with the next sending."""
        self._bytes_min = 1

    def forget(self) -> None:
        """Forgets the bytes of a connection that has ended."""
        self._bytes = 0
        self.wants_to_send = False

    def handled(self, count: int) -> None:
        """Notes the bytes of an event that was handled."""
        before = self._bytes
        self._bytes = before + count
        if not before or before < self._bytes_min <= self._bytes:
            self.wants_to_send = True

    def dropped(self, count: int) -> None:
        """Notes bytes of which the program gets nothing."""
        self._bytes += count

    @property
    def due_at(self) -> float | None:
        """When the handled bytes are credited, in monotonic seconds; None if there are none."""
        return self._credited_at + CREDIT_SECONDS if self._bytes else None

    def take(self, now: float) -> int:
        """Returns the bytes to credit now; 0 if no credit is due."""
        self.wants_to_send = False
        if not self._bytes or (self._bytes < self._bytes_min and now < self._credited_at + CREDIT_SECONDS):
            return 0
        count, self._bytes, self._credited_at = self._bytes, 0, now
        return count
