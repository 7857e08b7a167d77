"""The rules that the links of all shells share: when a peer counts as dead, and which errors are final. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from tailrace.errors import Forbidden, ProtocolError


class SetUpRefused(ProtocolError):
    """A connection to a node cannot succeed as both are set up. Only another node of the URL may do."""


class TlsRefused(SetUpRefused):
    """TLS with a node cannot succeed."""


class TunnelRefused(SetUpRefused):
    """A WebSocket to a node cannot be opened."""


# The seconds between two checks of deadlines and held requests, while there are any.
TICK_SECONDS = 0.05
# The same while no request is held, and all deadlines are far away: many clients in one program make many checks.
SLOW_TICK_SECONDS = 0.25

# A node that sends nothing for this many of its own noop intervals counts as dead. The node uses the same rule.
SILENT_INTERVALS_MAX = 3


class Link(enum.Enum):
    """The state of a session's connection."""

    DOWN = "down"
    GREETING = "greeting"
    OPEN = "open"


def tick_seconds(until_deadline_s: float) -> float:
    """Returns the seconds until the next check, if no request is held, for a first deadline in so many seconds."""
    return min(max(until_deadline_s / 4, TICK_SECONDS), SLOW_TICK_SECONDS)


def is_final(error: BaseException, *, greeted: bool) -> bool:
    """Tells whether no retry can mend the error that ended a connection; ``greeted``: the node had said hello."""
    return isinstance(error, Forbidden) or (isinstance(error, ProtocolError) and not greeted)


class Silence:
    """Measures how long the peer has been silent, from a counter of reads: so a read needs no clock."""

    def __init__(self, now: float) -> None:
        self._count = 0
        self._since = self._looked = now

    def seconds(self, count: int, now: float, *, listened: bool = True) -> float:
        """Returns the seconds since ``count`` was last seen to change; 0 if it has changed since the last call.

        The time since the last call does not count unless the program has ``listened`` meanwhile.
        """
        if count != self._count:
            self._count, self._since = count, now
        elif not listened:
            self._since += now - self._looked
        self._looked = now
        return now - self._since


class LongWaits:
    """Notes, look by look, since when each request waits. ``clock`` returns monotonic seconds.

    A client under load always waits for some answer, so that alone says nothing of the node.
    """

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
