"""Reads the latest state of a feed without async, one partition after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.consuming.items_core import ItemsCore, ItemsReader
from tailrace.model import Item
from tailrace.model.documented import documented

if TYPE_CHECKING:
    from tailrace.blocking.stream import Stream
    from tailrace.consuming.subscription import Subscription
    from tailrace.requests.replies import PartitionMap


class ItemFeed(Protocol):
    """The feed whose items are read."""

    def partition_map(self) -> PartitionMap: ...
    def stream(self, subscription: Subscription) -> Stream: ...


class Items:
    """An iterator of Item; ``Feed.items`` makes one. One thread at a time uses it.

    It reads a whole partition before it returns the partition's first item. No connection of its own is open in
    between, so a loop may be left at any time. A step that an exception ends is continued by the next one.
    """

    def __init__(self, feed: ItemFeed, core: ItemsCore) -> None:
        self._feed = feed
        self._core = core
        self._ready: Iterator[Item] = iter(())

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Item:
        item = next(self._ready, None)
        while item is None:
            items = self._next_partition(self._core)
            if items is None:
                raise StopIteration
            self._ready = iter(items)
            item = next(self._ready, None)
        return item

    @documented(ItemsReader.to_arrow)
    def to_arrow(self) -> Any:
        core, tables = self._core.by_columns(), []
        while (table := self._next_partition(core)) is not None:
            tables.append(table)
        from tailrace.consuming.arrow_items import joined

        return joined(tables)

    def _next_partition(self, core: ItemsCore) -> Any | None:
        """Reads the next partition of ``core``; None at the end."""
        if not core.has_begun:
            core.begin(self._feed.partition_map())
        wanted = core.subscription()
        if wanted is None:
            return None
        with self._feed.stream(wanted) as stream:
            for event in stream:
                core.note(event, stream.latest_positions)
        return core.take()
