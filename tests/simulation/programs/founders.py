"""Who makes a feed, uses it, and drops it, again and again under the same name: each is another feed."""

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
    """See the module. Everything that it is told is certain, since it waits that long for it."""

    def __init__(self, world, name):
        super().__init__(world, name)
        self._made = 0
        self._index = MemoryIndex()  # of the feed of the last round

    async def session(self):
        with self.world.damage():
            async with self.connect(retry_for=PATIENT_S, connect_timeout=5.0) as client:
                while not self.world.is_over.is_set():
                    with contextlib.suppress(UnknownFeed):
                        await client.drop_feed(NAME)  # of a process that was killed
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
        """It has what was written to it, and its followers are not those of the one before."""
        found = {item.key: item.value async for item in feed.items()}
        if found != rows:
            raise Violation(f"{self.name}: a new feed has {found}, and was given {rows}")
        if self._index.open() is not None:
            with contextlib.suppress(BadPosition):
                async with feed.follow(self._index):
                    raise Violation(f"{self.name}: an index of a feed that was dropped goes on with another one")

    async def _follow(self, feed, rows, task_status):
        """Until it is told that its feed is gone."""
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
    """Makes a feed, writes a row, and drops it, again and again under one name."""

    def __init__(self, world, name):
        super().__init__(world, name)
        self.dropped = []  # ids of feeds whose drop was answered

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
        """The feed's id. What it was told of is there, a while later too."""
        infos = [info for info in await client.feeds() if info.name == NAME]
        if not infos:
            raise UnknownFeed("it is not listed")
        value, level = self.new_value(), self.random.choice(("disk", "quorum"))
        await feed.put(b"key", value, level=level)
        await self.pause(self.random.random() * 2.0)
        item = await feed.get(b"key", level="quorum")
        if level == "quorum" and (item is None or item.value != value):
            self._is_missing("what it has written at quorum")
        return infos[0].feed_id

    def _is_missing(self, what):
        if self.world.checks.promises.forced_at is None:
            raise Violation(f"{self.name} does not find {what}, and nobody has forced a promotion")
