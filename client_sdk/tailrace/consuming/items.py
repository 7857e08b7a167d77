"""Reads the latest state of a feed, one partition after the other."""

from __future__ import annotations

import collections
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Protocol

from tailrace.consuming.events import Mutations, Rollback
from tailrace.consuming.session import Subscription
from tailrace.model import Item, Version
from tailrace.model.position import Positions

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tailrace.consuming.events import Event
    from tailrace.requests.replies import PartitionMap
    from tailrace.wire.filters import StreamFilter


class ItemStream(Protocol):
    """The stream of a feed, inside its context."""

    @property
    def latest_positions(self) -> Positions: ...
    def __aiter__(self) -> AsyncIterator[Event]: ...


class ItemFeed(Protocol):
    """The feed whose items are read."""

    @property
    def name(self) -> str: ...
    async def partition_map(self) -> PartitionMap: ...
    def stream(self, subscription: Subscription) -> AbstractAsyncContextManager[ItemStream]: ...


class Items:
    """An async iterator of Item; ``Feed.items`` makes one.

    It reads a whole partition before it returns the partition's first item. No stream is open in between, so a loop may
    be left at any time. One step for each partition is a checkpoint of trio.
    """

    def __init__(self, feed: ItemFeed, filter: StreamFilter) -> None:
        self._feed = feed
        self._filter = filter
        self._map: PartitionMap | None = None
        self._left: collections.deque[int] = collections.deque()
        self._latest: dict[bytes, Item] = {}  # of the partition that is being read, up to ``_since``
        self._since: str | Positions = "beginning"
        self._ready: Iterator[Item] = iter(())

    def __aiter__(self) -> Items:
        return self

    async def __anext__(self) -> Item:
        while True:
            item = next(self._ready, None)
            if item is not None:
                return item
            if self._map is None:
                self._map = await self._feed.partition_map()
                self._left.extend(sorted(self._map.high_seqs))
            if not self._left:
                raise StopAsyncIteration
            items = await self._read(self._left[0], self._map)
            self._left.popleft()  # a cancelled read goes on with the next step
            self._ready = iter(items)

    async def _read(self, id: int, at: PartitionMap) -> list[Item]:
        """Returns the items of a partition at its seq in ``at``, or later. Raises UnknownFeed if the feed was dropped.

        If that seq was lost, the read ends at the last seq that both histories share. If a call is cancelled, the next
        one goes on from the rows that it has read.
        """
        subscription = Subscription(
            self._feed.name,
            self._since,
            {id: at.high_seqs[id]},
            frozenset([id]),
            on_rollback="restart",
            stored=(self._since,) if isinstance(self._since, Positions) else (),
            ring_rows=0,
            filter=self._filter,
            until_logs=at.logs,
            feed_id=at.feed_id,
            catch_up="auto",
        )
        async with self._feed.stream(subscription) as stream:
            async for event in stream:
                if isinstance(event, Mutations):
                    self._note(event, self._latest)
                elif isinstance(event, Rollback):
                    self._latest.clear()  # the node sends the partition again
                self._since = stream.latest_positions
        latest, self._latest, self._since = self._latest, {}, "beginning"
        return list(latest.values())

    def _note(self, event: Mutations, latest: dict[bytes, Item]) -> None:
        for key, value, seq, timestamp, _ in event:
            if value is None:
                latest.pop(key, None)
            else:
                latest[key] = Item(key, value, Version(event.partition, event.branch, seq), timestamp)
