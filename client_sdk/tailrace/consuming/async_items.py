"""Reads the latest state of a feed with async, one partition after the other: what those shells share. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.consuming.items_core import ItemsCore, ItemsReader
from tailrace.model import Item
from tailrace.model.documented import documented

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tailrace.consuming.events import Event
    from tailrace.consuming.subscription import Subscription
    from tailrace.model.position import Positions
    from tailrace.requests.replies import PartitionMap


class ItemStream(Protocol):
    """The stream of a feed, inside its context."""

    @property
    def latest_positions(self) -> Positions: ...
    def __aiter__(self) -> AsyncIterator[Event]: ...


class ItemFeed(Protocol):
    """The feed whose items are read."""

    async def partition_map(self) -> PartitionMap: ...
    def stream(self, subscription: Subscription) -> AbstractAsyncContextManager[ItemStream]: ...


class AsyncItems:
    """The base of each shell's `Items`."""

    def __init__(self, feed: ItemFeed, core: ItemsCore) -> None:
        self._feed = feed
        self._core = core
        self._ready: Iterator[Item] = iter(())

    def __aiter__(self) -> AsyncItems:
        return self

    async def __anext__(self) -> Item:
        while True:
            item = next(self._ready, None)
            if item is not None:
                return item
            items = await self._next_partition(self._core)
            if items is None:
                raise StopAsyncIteration
            self._ready = iter(items)

    @documented(ItemsReader.to_arrow, "If it is cancelled, the next call reads all anew.")
    async def to_arrow(self) -> Any:
        core, tables = self._core.by_columns(), []
        while (table := await self._next_partition(core)) is not None:
            tables.append(table)
        from tailrace.consuming.arrow_items import joined

        return joined(tables)

    async def _next_partition(self, core: ItemsCore) -> Any | None:
        """Reads the next partition of ``core``; None at the end."""
        if not core.has_begun:
            core.begin(await self._feed.partition_map())
        subscription = core.subscription()
        if subscription is None:
            return None
        async with self._feed.stream(subscription) as stream:
            async for event in stream:  # a cancelled read goes on with the next step
                core.note(event, stream.latest_positions)
        return core.take()
