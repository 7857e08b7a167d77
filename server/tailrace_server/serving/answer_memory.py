"""The node's account of the memory that answers take: over all connections, until the peers have them."""

from __future__ import annotations

from collections.abc import Callable

# A connection that holds less than this goes on even if the account is full: small requests never wait for other
# clients. With 4,096 connections that is as much again as the account's usual bound.
SHARE_BYTES = 64 * 1024


class AnswerMemory:
    """``held`` bytes of at most ``bytes_max``; above that a connection with more than its share waits.

    A connection waits only for its own peer to take answers, or for ``held`` to fall. So a peer that takes nothing
    holds up itself alone.
    """

    def __init__(self, bytes_max: int) -> None:
        self.held = 0
        self._bytes_max = bytes_max
        self._waiting: dict[Callable[[], None], None] = {}

    def refuses(self, held_bytes: int) -> bool:
        """Tells whether a connection that holds ``held_bytes`` has to wait."""
        return self.held > self._bytes_max and held_bytes > SHARE_BYTES

    def change(self, nbytes: int) -> None:
        """Counts ``nbytes`` more, or less if it is negative."""
        self.held += nbytes
        if self._waiting and self.held <= self._bytes_max:
            waiting, self._waiting = self._waiting, {}
            for look_again in waiting:
                look_again()

    def when_room(self, look_again: Callable[[], None]) -> None:
        """Calls ``look_again`` once, when ``held`` has fallen to the bound."""
        self._waiting[look_again] = None

    def forget(self, look_again: Callable[[], None]) -> None:
        """Drops what ``when_room`` has noted."""
        self._waiting.pop(look_again, None)
