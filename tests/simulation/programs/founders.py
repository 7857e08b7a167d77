"""Programs that make a feed, use it and drop it, again and again under one name: each time it is another feed."""

from __future__ import annotations

import contextlib

import trio
from tests.processes.violation import Violation

from tailrace import BadPosition, FeedExists, OutcomeUnknown, Retryable, UnknownFeed
from tailrace.indexes import MemoryIndex

from .process import PATIENT_S, Process

NAME = "passing"
ROWS_MAX = 6


class FeedFounder(Process):
    """Makes and drops feeds of one node. It waits for each answer, so that every outcome is known."""

    def __init__(self, world, name):
        super().__init__(world, name)
        self._made = 0
        self._index = MemoryIndex()  # of the feed before

    async def session(self):
        with self.world.damage():
            async with self.connect(retry_for=PATIENT_S, connect_timeout=5.0) as client:
                while not self.world.is_over.is_set():
                    with contextlib.suppress(UnknownFeed):
                        await client.drop_feed(NAME)  # the last session was killed before it dropped its feed
                    await self._round(client)
                    await self.pause(self.random.random() * 4.0)
            return
        await trio.sleep(0.1)

    async def _round(self, client):
        self._made += 1
        partitions = self.random.choice((1, 2))
        feed = await client.create_feed(NAME, partitions=partitions, exist_ok=self.random.random() < 0.5)
        rows = {b"key %d" % row: b"%d" % self._made for row in range(self.random.randint(0, ROWS_MAX))}
        for key, value in rows.items():
            await feed.put(key, value)
        await self._check_is_new(feed, rows)
        async with trio.open_nursery() as nursery:
            for _ in range(self.random.choice((1, 2))):
                await nursery.start(self._follow, feed, rows)
            await self.pause(self.random.random())
            await client.drop_feed(NAME)
        self.world.report.operation("feed made and dropped")

    async def _check_is_new(self, feed, rows):
        """Checks that a new feed has just its own rows, and refuses an index of the feed before."""
        found = {item.key: item.value async for item in feed.items()}
        if found != rows:
            raise Violation(f"{self.name}: a new feed has {found}, and was given {rows}")
        if self._index.open() is not None:
            with contextlib.suppress(BadPosition):
                async with feed.follow(self._index):
                    raise Violation(f"{self.name}: an index of a feed that was dropped goes on with another one")

    async def _follow(self, feed, rows, task_status):
        """Follows the feed until it is dropped, and checks a barrier."""
        index = MemoryIndex()
        with contextlib.suppress(UnknownFeed):
            async with feed.follow(index) as follower:
                await follower.barrier()
                if index.state != rows:
                    raise Violation(f"{self.name}: a follower has {index.state} after a barrier, not {rows}")
                self._index = index
                task_status.started()
                await trio.sleep_forever()


class SetFounder(Process):
    """Makes and drops feeds of a set, and writes a row to each.

    Attributes:
        dropped: The ids of the feeds whose drop was answered.
    """

    def __init__(self, world, name):
        super().__init__(world, name)
        self.dropped = []

    async def session(self):
        with (
            contextlib.suppress(Retryable, OutcomeUnknown, UnknownFeed, FeedExists),
            self.world.damage(),
        ):
            async with self.connect(retry_for=PATIENT_S, connect_timeout=5.0) as client:
                while not self.world.is_over.is_set():
                    feed = await client.create_feed(NAME, partitions=self.random.choice((1, 2)))
                    try:
                        feed_id = await self._use(client, feed)
                    except UnknownFeed:
                        self._is_missing("the feed that it has made")
                        continue
                    await client.drop_feed(NAME)
                    self.dropped.append(feed_id)
                    self.world.report.operation("feed made and dropped")
                    await self.pause(self.random.random() * 2.0)
            return
        await trio.sleep(0.1)

    async def _use(self, client, feed):
        """Uses a new feed, and returns its id. Whatever was acknowledged at quorum is still there a while later."""
        infos = [info for info in await client.feeds() if info.name == NAME]
        if not infos:
            raise UnknownFeed("it is not listed")
        value, level = self.new_value(), self.random.choice(("disk", "quorum"))
        await feed.put(b"key", value, level=level)
        await self.pause(self.random.random() * 2.0)
        item = await feed.get(b"key", level="quorum")
        if level == "quorum" and (item is None or item.value != value):
            self._is_missing("its write at quorum")
        return infos[0].feed_id

    def _is_missing(self, what):
        if self.world.checks.promises.forced_at is None:
            raise Violation(f"{self.name} does not find {what}, and no promotion was forced")
