"""Which tails share a hub: those of one feed with the same filters and the same proof of their rights.

A hub shows the token or the certificate of its tails. So the node gives it what it would give each of them, and ends it
when it would end theirs. Tails with different tokens never share, even if the tokens permit the same.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import trio

from tailrace.errors import TailraceError
from tailrace.tls.engine import PeerIdentity
from tailrace.trio.stream import Stream
from tailrace_server.serving.tailing.hub import Hub
from tailrace_server.serving.tailing.ticks import Start

log = logging.getLogger("tailrace.ws")

# With one tail a hub would be a second stream that serves none.
SHARED_FROM = 2


class Shared(NamedTuple):
    """What tails have to have in common."""

    feed: str
    key_prefix: bytes
    keys_only: bool
    token: str | None
    certificate: PeerIdentity | None


class Group:
    """The tails that ask for the same, and their hub as long as some of them are level with the feed."""

    def __init__(self, nursery: trio.Nursery, consume: Callable[[Start], Stream]) -> None:
        """``consume`` makes a stream with the rights of the tails. A hub runs in ``nursery``."""
        self._nursery = nursery
        self._consume = consume
        self._level: dict[object, Callable[[], None]] = {}
        self._hub: Hub | None = None
        self._scope: trio.CancelScope | None = None  # of the task of the hub, which may not have begun

    def level(self, tail: object, call: Callable[[], None], start: Callable[[], Start]) -> Hub | None:
        """Notes that a tail is level with the feed, until `away`. Returns the hub, if it has begun.

        ``call`` is called when a hub begins. ``start`` tells where the tail's stream goes on. A hub begins there, with
        its recent keys: so a rollback to before that is as short for all as it is for the tail.
        """
        self._level[tail] = call
        if len(self._level) >= SHARED_FROM and self._scope is None:
            self._scope = trio.CancelScope()
            hub = Hub(self._consume(start()), lambda: len(self._level))
            self._nursery.start_soon(self._run, hub, self._scope)
        return self._hub

    def away(self, tail: object) -> None:
        """Notes that a tail is not level any more, or has ended."""
        self._level.pop(tail, None)
        if not self._level and self._scope is not None:
            self._scope.cancel()
            self._hub = self._scope = None

    async def _run(self, hub: Hub, scope: trio.CancelScope) -> None:
        def began() -> None:
            if self._scope is scope:
                self._hub = hub
                for call in list(self._level.values()):
                    call()

        try:
            with scope:
                await hub.run(began)
        except TailraceError as error:
            hub.end(error)
        except Exception as error:  # a bug of ours
            log.exception("the tails of a feed were ended by an internal error")
            hub.end(TailraceError(f"the stream that tails share was ended by an internal error: {error!r}"))
        if self._scope is scope:
            self._hub = self._scope = None


class Sharing:
    """The groups of a listener. Hubs run in ``nursery``."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._groups: dict[Shared, Group] = {}
        self._tails: collections.Counter[Shared] = collections.Counter()

    @contextlib.contextmanager
    def group(self, shared: Shared, consume: Callable[[Start], Stream]) -> Iterator[Group]:
        """Gives the group of a tail while the body runs. ``consume``: as for `Group`."""
        group = self._groups.setdefault(shared, Group(self._nursery, consume))
        self._tails[shared] += 1
        try:
            yield group
        finally:
            self._tails[shared] -= 1
            if not self._tails[shared]:
                del self._groups[shared], self._tails[shared]
