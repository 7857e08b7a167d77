"""Keeps an index equal to a feed under trio: ``async with feed.follow(index) as follower: ...``"""

from __future__ import annotations

from typing import Protocol

import trio

from tailrace.indexes import Index
from tailrace.indexes.follower_core import FollowerCore, FollowOptions
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

    A call that is cancelled ends alone: the follower goes on. If the body is cancelled, the batch that is being applied
    is finished first; the next follower goes on behind it.
    """

    def __init__(self, feed: _HostedFeed, index: Index, options: FollowOptions) -> None:
        core = FollowerCore(feed.name, index, options)
        library = Library(trio.Event, trio.sleep, trio.current_time)
        thread = feed.host.worker(f"tailrace index of {feed.name}")
        super().__init__(feed, core, options.visibility, library, thread, Lifetime())

    __aenter__ = trio.lowlevel.enable_ki_protection(Following.__aenter__)
    __aexit__ = trio.lowlevel.enable_ki_protection(Following.__aexit__)
    barrier = trio.lowlevel.enable_ki_protection(Following.barrier)
    wait_for = trio.lowlevel.enable_ki_protection(Following.wait_for)
