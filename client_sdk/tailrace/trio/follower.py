"""Keeps an index equal to a feed under trio: ``async with feed.follow(index) as follower: ...``"""

from __future__ import annotations

from typing import Protocol

import trio

from tailrace.consuming.ring import RING_ROWS
from tailrace.indexes import Index
from tailrace.indexes.follower_core import FollowerCore
from tailrace.indexes.following import FollowedFeed, Following, Library
from tailrace.trio.host import Host
from tailrace.trio.lifetime import Lifetime


class _HostedFeed(FollowedFeed, Protocol):
    """A feed under trio, which knows where its indexes work."""

    @property
    def host(self) -> Host: ...


class Follower(Following):
    """Applies a feed to an index, each batch together with its checkpoint. Made by `Feed.follow`.

    All tasks of one trio run may call its methods. If the index raises an exception, the body ends with it.
    """

    def __init__(
        self,
        feed: _HostedFeed,
        index: Index,
        *,
        visibility: str = "disk",
        ring: int = RING_ROWS,
        catch_up: str = "auto",
    ) -> None:
        core = FollowerCore(feed.name, index, ring, catch_up)
        library = Library(trio.Event, trio.sleep, trio.current_time)
        thread = feed.host.worker(f"tailrace index of {feed.name}")
        super().__init__(feed, core, visibility, library, thread, Lifetime())
