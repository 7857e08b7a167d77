"""Programs that ask for keys, or for the state of a node, and keep nothing. Each checks every answer."""

from __future__ import annotations

import collections
import contextlib

import trio
from tests.processes.readers import Looker

import tailrace
from tailrace import BadPosition, Forbidden, Retryable, Rollback, StreamEnded

from .keys import ANY
from .process import PATIENT_S, Process


class LookingProcess(Process):
    """Asks one node for one key, for many and for all. Each answer was right at some moment since the request."""

    async def session(self):
        self._looker = Looker(self.world.checks.truth.history, self.random, self.world.keys.all[ANY], ["disk"])
        await self.repeat(self._look, retry_for=self.random.choice((0.3, PATIENT_S)))

    async def _look(self, feed):
        if self.random.random() < 0.1:
            await self._looker.look_at_items(feed)
            self.world.report.operation("items")
        else:
            keys = self.world.keys.all[ANY]
            await self._looker.look_at(feed, self.random.sample(keys, self.random.choice((1, 1, 20))))
            self.world.report.operation("get")
        await self.pause(self.random.random())


class StateReader(Process):
    """Reads from one follower of a set: a key, or its state by a stream."""

    async def session(self):
        url = self.world.url_of(self.world.read_from or self.random.choice(self.world.names))
        # A node with a new disk is a cluster of its own until it follows.
        refused = [Forbidden] if self.world.plan.way == "switch" else []  # level quorum, in mode segment
        with contextlib.suppress(Retryable, StreamEnded, BadPosition, *refused), self.world.damage():
            with trio.move_on_after(3.0):
                await self._read(url)
        await self.pause(0.2)

    async def _read(self, url):
        async with self.connect(url, state="follower", retry_for=1.0, connect_timeout=2.0) as client:
            feed = client.feed(self.world.feed_name)
            while not self.world.is_over.is_set():
                if self.world.read_from is not None:
                    await self._consume(feed)
                    await self.pause(0.05 * self.random.random())
                    continue
                await self.random.choice((self._get, self._consume))(feed)
                await self.pause(self.random.random() * 0.5)

    async def _get(self, feed):
        key = self.random.choice(self.world.keys.in_use["disk"])
        item = await feed.get(key, level="disk")
        if item is not None:
            self.world.checks.check_was_written(self.name, self.world.partition_of(key), key, item.value)
        self.world.report.operation("get from a follower")

    async def _consume(self, feed):
        """Checks the state of the follower at the end of each snapshot: it has to have existed."""
        level = self.world.read_level or self.random.choice(self.world.plan.levels)
        states = collections.defaultdict(dict)
        async with feed.consume(until="now", visibility=level) as stream:
            async for event in stream:
                if isinstance(event, Rollback):
                    if event.seq:  # else a deletion was purged before the stream got it
                        self.world.checks.rolled_back(self.name, event.partition, f"to {event.seq}", level)
                    return
                if isinstance(event, tailrace.Mutations):
                    for key, value in zip(event.keys(), event.values(), strict=True):
                        states[event.partition][key] = value
                        if value is not None:
                            self.world.checks.check_was_written(self.name, event.partition, key, value)
                if isinstance(event, tailrace.SnapshotEnd):
                    self.world.checks.check_state(self.name, event.partition, states[event.partition], event.position)
                    self.world.checks.promises.shown(self.world.checks.place(event.partition), level, event.position)
        self.world.report.operation("state of a follower")
