"""Waits for a connection's socket, and polls before it sleeps while lone requests are answered soon."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from tailrace.link.busy_polling import BusyPolling
from tailrace.processors import has_spare_processor

# The most seconds of polling. A node that polls, too, answers a look-up within 15 µs, and one that sleeps within 35.
BUSY_POLL_SECONDS = 0.00005

# The number of a socket that is ready, and its events.
Ready: TypeAlias = Sequence[tuple[int, int]]


class SocketPoll:
    """A poll object. One thread at a time waits."""

    def __init__(self, busy_poll_s: float = BUSY_POLL_SECONDS) -> None:
        """``busy_poll_s``: the most seconds of polling before it sleeps, if the process has a processor to spare."""
        poll = select.poll()
        self.register = poll.register
        self.unregister = poll.unregister
        self.modify = poll.modify
        self._poll = poll.poll
        self.now = partial(poll.poll, 0)  # returns the sockets that are ready now
        self._polling = BusyPolling(busy_poll_s if has_spare_processor() else 0.0)

    def wait(self, seconds: float) -> Ready:
        """Waits until a socket is ready, for ``seconds`` at most. Returns the ready ones."""
        polling, began_at = self._polling, time.monotonic()
        if polling.is_due:
            polls_s = min(polling.seconds, seconds)
            ready = polling.search(self.now, time.monotonic, began_at + polls_s)
            return ready or self._poll((seconds - polls_s) * 1000)
        ready = self._poll(seconds * 1000)
        polling.slept(time.monotonic() - began_at)
        return ready
