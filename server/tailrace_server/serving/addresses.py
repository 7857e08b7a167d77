"""Counts by the address of a peer: its connections, and the wrong tokens that it has presented lately."""

from __future__ import annotations

from collections import Counter, OrderedDict

from tailrace_server.serving.exposure import is_loopback

# The wrong tokens of an address after which its next ones are answered late, and the most seconds of that.
WRONG_TOKENS_FREE = 5
PAUSE_SECONDS_MAX = 5.0
# A wrong token is forgotten after so many seconds.
FORGET_SECONDS = 30.0
ADDRESSES_MAX = 4_096


def host_of(peer: str) -> str:
    """Returns the host of ``HOST:PORT``; the whole text if it is none."""
    host, colon, _ = peer.rpartition(":")
    return host if colon else peer


class AddressCounts:
    """The open connections of each address. Loopback has no bound: programs of this machine share it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def admits(self, host: str, most: int) -> bool:
        """Counts a connection of ``host``, unless it has ``most`` already."""
        if self._counts[host] >= most and not is_loopback(host):
            return False
        self._counts[host] += 1
        return True

    def left(self, host: str) -> None:
        """Notes that a connection that was counted has ended."""
        self._counts[host] -= 1
        if self._counts[host] <= 0:
            del self._counts[host]


class WrongTokens:
    """The wrong tokens of each address. A guess of 256 bits is hopeless; this bounds its cost and its log lines."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[float, float]] = OrderedDict()  # the count as of a moment

    def __len__(self) -> int:
        return len(self._last)

    def pause_s(self, host: str, now: float) -> float:
        """Counts a wrong token at ``now``, and returns the seconds after which it is answered."""
        count, at = self._last.pop(host, (0.0, now))
        count = max(0.0, count - (now - at) / FORGET_SECONDS) + 1
        self._last[host] = count, now
        if len(self._last) > ADDRESSES_MAX:
            self._last.popitem(last=False)
        return min(max(0.0, count - WRONG_TOKENS_FREE), PAUSE_SECONDS_MAX)
