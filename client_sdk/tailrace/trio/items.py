"""Reads the latest state of a feed under trio, one partition after the other."""

from __future__ import annotations

import trio

from tailrace.consuming.async_items import AsyncItems


class Items(AsyncItems):
    """An async iterator of Item; ``Feed.items`` makes one.

    It reads a whole partition before it returns the partition's first item. No stream is open in between, so a loop may
    be left at any time. One step for each partition is a checkpoint of trio.

    One task at a time uses it. A step that is cancelled is continued by the next one, and no item is lost.
    """

    __anext__ = trio.lowlevel.enable_ki_protection(AsyncItems.__anext__)
    to_arrow = trio.lowlevel.enable_ki_protection(AsyncItems.to_arrow)
