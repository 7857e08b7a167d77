"""Keeps an index equal to a feed under asyncio."""

from __future__ import annotations

import asyncio
import time

from tailrace.asyncio.lifetime import Lifetime
from tailrace.asyncio.worker_thread import WorkerThread
from tailrace.indexes import Index
from tailrace.indexes.follower_core import FollowerCore, FollowOptions
from tailrace.indexes.following import FollowedFeed, Following, Library


class Follower(Following):
    """Applies a feed to an index, each batch together with its checkpoint. Made by `Feed.follow`.

    All tasks of one event loop may call its methods. If the index raises an exception, the body ends with it.

    A call that is cancelled ends alone: the follower goes on. If the body is cancelled, the batch that is being applied
    is finished first; the next follower goes on behind it.
    """

    def __init__(self, feed: FollowedFeed, index: Index, options: FollowOptions) -> None:
        core = FollowerCore(feed.name, index, options)
        library = Library(asyncio.Event, asyncio.sleep, time.monotonic)
        thread = WorkerThread(f"tailrace index of {feed.name}")
        super().__init__(feed, core, options.visibility, library, thread, Lifetime())
