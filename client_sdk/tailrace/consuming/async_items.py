"""Reads the latest state of a feed with async, one partition after the other: what those shells share. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Protocol

from tailrace.consuming.items_core import ItemsCore
from tailrace.model import Item

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
            if not self._core.has_begun:
                self._core.begin(await self._feed.partition_map())
            subscription = self._core.subscription()
            if subscription is None:
                raise StopAsyncIteration
            async with self._feed.stream(subscription) as stream:
                async for event in stream:  # a cancelled read goes on with the next step
                    self._core.note(event, stream.latest_positions)
            self._ready = iter(self._core.take())
