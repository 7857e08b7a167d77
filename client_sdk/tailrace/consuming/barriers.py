"""The barriers of a consumer, across connections. Sans-IO: the session sends the cookies and reports the answers.

A barrier waits until all streams are open. It is sent under a cookie of its own each time, so an answer to an earlier
connection or stream does not count. If a barrier is lost, the next one is sent after a pause.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

from tailrace.link.backoff import backoff_seconds


class Barriers:
    """The barriers that have not come back. Only this file sets the fields."""

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        """Makes an empty set; ``clock`` gives monotonic seconds, ``jitter`` a number from 0 to 1."""
        self._clock = clock
        self._jitter = jitter
        self._cookies = itertools.count(1)
        self._waiting: dict[bytes, Callable[[], None]] = {}  # by the caller's cookie
        # The cookies that were sent, and the callers' cookies. Invariant: each of these is in ``_waiting``.
        self._sent: dict[bytes, bytes] = {}
        self._lost = 0  # in a row
        self._next_at = 0.0  # when the next ones may be sent, in monotonic seconds

    def add(self, cookie: bytes, reached: Callable[[], None]) -> None:
        """Adds a barrier; ``reached`` is called once."""
        self._waiting[cookie] = reached

    def forget(self, cookie: bytes) -> None:
        """Drops a barrier, whether it has come back or not."""
        self._waiting.pop(cookie, None)
        for sent in [sent for sent, barrier in self._sent.items() if barrier == cookie]:
            del self._sent[sent]

    def reach(self, cookie: bytes) -> None:
        """Drops a barrier, and calls its ``reached``."""
        reached = self._waiting.get(cookie)
        self.forget(cookie)
        if reached is not None:
            reached()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def cookies(self) -> Collection[bytes]:
        """The callers' cookies of the barriers that have not come back."""
        return self._waiting.keys()

    @property
    def unsent(self) -> bool:
        """True if a barrier is not under way."""
        return len(self._sent) < len(self._waiting)

    @property
    def next_at(self) -> float:
        """When the next barriers may be sent, in monotonic seconds."""
        return self._next_at

    def send(self) -> list[bytes]:
        """Returns a new cookie to send for each barrier that is not under way; none during a pause."""
        if self._clock() < self._next_at:
            return []
        under_way = set(self._sent.values())
        cookies = []
        for barrier in [cookie for cookie in self._waiting if cookie not in under_way]:
            sent = next(self._cookies).to_bytes(8, "little")
            self._sent[sent] = barrier
            cookies.append(sent)
        return cookies

    def came_back(self, sent: bytes) -> bytes | None:
        """Returns the barrier that was sent under this cookie; None if that does not count any more."""
        barrier = self._sent.get(sent)
        if barrier is not None:
            self._lost = 0
        return barrier

    def was_lost(self, sent: bytes) -> None:
        """Has a barrier sent again after a pause, since the node could not follow it."""
        if self._sent.pop(sent, None) is None:
            return
        now = self._clock()
        if now >= self._next_at:  # the others that were under way are lost for the same reason
            self._lost += 1
            self._next_at = now + backoff_seconds(self._lost, self._jitter)

    def stream_stopped(self) -> None:
        """Ignores all answers under way: a node also answers if it has ended the stream that the barrier is for."""
        self._sent.clear()

    def connection_lost(self) -> None:
        """Has all barriers sent again on the next connection, without a pause."""
        self._sent.clear()
        self._lost, self._next_at = 0, 0.0
