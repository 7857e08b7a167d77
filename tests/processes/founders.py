"""A client that makes small feeds and drops them again, under the same few names."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tailrace import BadPosition, FeedExists, Item, Positions, UnknownFeed

from .violation import Violation

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    import tailrace

NAMES = [f"side-{number}" for number in range(3)]
KEY = b"the only key"


class Founder:
    """Makes and drops feeds of one key. ``ends`` returns how many processes of the node have ended."""

    def __init__(self, rnd: random.Random, ends: Callable[[], int]) -> None:
        self._random = rnd
        self._ends = ends
        self._items: dict[str, Item] = {}  # of each feed that was made and not dropped
        self._old_positions: dict[str, str] = {}  # of dropped feeds, by their name
        self.made = 0

    async def step(self, client: tailrace.Client) -> None:
        """Makes a feed or drops one."""
        name = self._random.choice(NAMES)
        try:
            if name in self._items:
                await self._drop(client, name)
            else:
                await self._make(client, name)
        except (UnknownFeed, FeedExists) as error:
            raise Violation(f"feed {name} was made or dropped before, and a client is told: {error}") from error

    async def _make(self, client: tailrace.Client, name: str) -> None:
        feed = await client.create_feed(name, partitions=self._random.randrange(1, 4), exist_ok=False)
        self.made += 1
        if await feed.get(KEY) is not None:
            raise Violation(f"the new feed {name} has the key of the dropped feed of this name")
        old = self._old_positions.get(name)
        if old is not None:
            with contextlib.suppress(BadPosition):
                async with feed.consume(Positions.parse(old)):
                    raise Violation(f"the new feed {name} takes a position of another feed of this name")
        value = str(self.made).encode()
        version = await feed.put(KEY, value)
        item = await feed.get(KEY)
        if item is None or item[:3] != (KEY, value, version):
            raise Violation(f"feed {name} has {item}, and {value!r} was put, which is {version}")
        self._items[name] = item

    async def _drop(self, client: tailrace.Client, name: str) -> None:
        await self._check(client, name)
        async with client.feed(name).consume("now") as stream:
            self._old_positions[name] = str(stream.positions)
        ends = self._ends()
        try:
            await client.drop_feed(name)
        except UnknownFeed:
            # This was a retry: a node that ended before it could answer had dropped the feed already.
            if ends == self._ends():
                raise Violation(f"feed {name} was there, and cannot be dropped") from None
        del self._items[name]

    async def _check(self, client: tailrace.Client, name: str) -> None:
        item = await client.feed(name).get(KEY)
        if item != self._items[name]:
            raise Violation(f"feed {name} has {item}, and should have {self._items[name]}")

    async def check(self, client: tailrace.Client, others: set[str]) -> None:
        """Checks that the feeds are the ``others`` and those that were made and not dropped."""
        names = {feed.name for feed in await client.feeds()}
        if names != {*others, *self._items}:
            raise Violation(f"there are the feeds {sorted(names)}, and should be {sorted(self._items)}")
        for name in self._items:
            await self._check(client, name)
