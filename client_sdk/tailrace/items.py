"""The latest state of a feed, partition by partition."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tailrace.consuming.session import Wanted
from tailrace.events import Mutations, Rollback
from tailrace.model import Item, PartitionInfo, Version

if TYPE_CHECKING:
    from tailrace.feed import Feed
    from tailrace.wire.filters import StreamFilter


class Items:
    """An async iterator of Item; ``Feed.items`` makes one.

    It reads a partition as a whole before it gives the first item of it, so that it may be left at any time: nothing
    is open in between. A checkpoint once a partition.
    """

    def __init__(self, feed: Feed, wanted_rows: StreamFilter) -> None:
        self._feed = feed
        self._wanted_rows = wanted_rows
        self._left: collections.deque[PartitionInfo] | None = None
        self._ready: Iterator[Item] = iter(())

    def __aiter__(self) -> Items:
        return self

    async def __anext__(self) -> Item:
        while True:
            item = next(self._ready, None)
            if item is not None:
                return item
            if self._left is None:
                self._left = collections.deque(await self._feed.partitions())
            if not self._left:
                raise StopAsyncIteration
            self._ready = iter(await self._read(self._left.popleft()))

    async def _read(self, info: PartitionInfo) -> list[Item]:
        """The items of a partition, as of the seq that it had come to when the partitions were asked for, or later."""
        latest: dict[bytes, Item] = {}
        until, only = {info.id: info.high_seq}, frozenset([info.id])
        wanted = Wanted(self._feed.name, "beginning", until, only, on_rollback="restart", ring_rows=0)
        wanted = wanted._replace(filter=self._wanted_rows)
        async with self._feed.stream(wanted) as stream:
            async for event in stream:
                if isinstance(event, Mutations):
                    self._note(event, latest)
                elif isinstance(event, Rollback):
                    latest.clear()  # it comes again from the beginning
        return list(latest.values())

    def _note(self, event: Mutations, latest: dict[bytes, Item]) -> None:
        for key, value, seq, timestamp, _ in event:
            if value is None:
                latest.pop(key, None)
            else:
                latest[key] = Item(key, value, Version(event.partition, event.branch, seq), timestamp)
