"""Tells whether a request has waited for its answer for long. Pure.

A client under load always waits for some answer, so that alone says nothing of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class LongWaits:
    """Notes, look by look, since when each request waits. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._since: dict[object, float] = {}  # only of those that waited at the last look

    def look(self, waiting: Iterable[object]) -> bool:
        """Tells whether one of these requests has waited for so many seconds, as far as looks have seen.

        Args:
            waiting: The requests without an answer; of several that are answered in order, the first one is enough.

        Returns:
            True if one of them was among those of all looks of the last ``seconds``.
        """
        now, before = self._clock(), self._since
        self._since = {request: before.get(request, now) for request in waiting}
        return any(now - since >= self._seconds for since in self._since.values())
