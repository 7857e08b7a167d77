"""A program whose keys expire, in a feed of its own; in the end it reads what has become of them."""

from __future__ import annotations

import contextlib
from collections import Counter

import trio
from tests.processes.violation import Violation

from tailrace import Mutations, Retryable
from tailrace.errors import TailraceError

from .process import PATIENT_S, Process

SESSIONS = "sessions"
# The ttl of the feed, which is that of rows without one; and those that puts name.
FEED_TTL_S = 3
TTLS = (None, 1, 1, 2, 4, 1_000)
# Keys are few, so that most rows have newer ones.
KEYS = [b"session %d" % number for number in range(40)]
# The time until the check: the longest ttl that ends, and the next one.
EXPIRED_SECONDS_MAX = 12.0
# A survey of a new leader, two sweeps, and the share of the ttl.
LATE_SECONDS_MAX = 6
# By then all nodes have what the leader has.
EQUAL_SECONDS_MAX = 60.0


class Sessions(Process):
    """Writes rows with ttls and without, and deletes some. The feed keeps its history, so that nothing is hidden."""

    async def session(self):
        with contextlib.suppress(Retryable):
            async with self.connect(retry_for=3.0, connect_timeout=5.0) as client:
                feed = await client.create_feed(SESSIONS, partitions=2, retention="history", ttl_s=FEED_TTL_S)
                while not self.world.is_over.is_set():
                    await self._step(feed)
                    await self.pause(self.random.random() * 0.2)
            return
        await trio.sleep(0.1)

    async def _step(self, feed):
        key, ttl = self.random.choice(KEYS), self.random.choice(TTLS)
        with contextlib.suppress(TailraceError):
            if self.random.random() < 0.2:
                await feed.delete(key)
            else:
                # The value tells the ttl, in seconds.
                await feed.put(key, b"%d" % (ttl or FEED_TTL_S), ttl=ttl)

    async def end(self):
        """Waits until all that expires has to be gone, and checks what consumers of each node get."""
        async with self.connect(retry_for=PATIENT_S, connect_timeout=5.0) as client:
            feed = await client.create_feed(SESSIONS, partitions=2, retention="history", ttl_s=FEED_TTL_S)
            await feed.put(KEYS[0], b"1000", ttl=1_000)  # the leader leads
            await trio.sleep(EXPIRED_SECONDS_MAX)
            told = await self._rows_of(feed)
        [leader] = [machine.life.node for machine in self.world.machines if self.world.leads(machine)]
        self._check(told, leader.host.clock.wall_us())
        await self._all_equal(told)

    async def _rows_of(self, feed):
        rows = {}
        async with feed.consume(until="now") as stream:
            async for event in stream:
                if isinstance(event, Mutations):
                    rows.setdefault(event.partition, []).extend(event)
        return rows

    def _check(self, told, now_us):
        """Raises Violation for a key that has expired early, or not at all, or in the place of a newer row.

        A clock that was set back makes keys expire later: ``now_us`` is that of the leader.
        """
        counts = Counter()
        for rows in told.values():
            state = {}
            for row in rows:
                before = state.get(row.key)
                if row.expired:
                    counts["expired key"] += 1
                    if before is None:
                        raise Violation(f"{row} has expired, and the row before it has no value")
                    if row.timestamp < before.timestamp + int(before.value) * 1_000_000:
                        raise Violation(f"{row} has expired before its time: {before}")
                state[row.key] = None if row.deleted else row
            for row in state.values():
                if row is not None and row.timestamp + (int(row.value) + LATE_SECONDS_MAX) * 1_000_000 < now_us:
                    raise Violation(f"{row} has not expired though it is {now_us} by the leader's clock")
        for name, count in counts.items():
            for _ in range(count):
                self.world.report.operation(name)

    async def _all_equal(self, told):
        """Waits until all nodes hold the same rows; raises Violation if they do not, or others than were told."""
        known = {number: [_plain(row) for row in rows] for number, rows in told.items()}
        with trio.move_on_after(EQUAL_SECONDS_MAX):
            while True:
                found, *others = [_held(machine.life.node) for machine in self.world.machines]
                if all(other == found for other in others):
                    break
                await trio.sleep(0.5)
        if any(other != found for other in others):
            raise Violation(f"the nodes hold other rows than each other: {[found, *others]}")
        for number, rows in known.items():
            if found[number][: len(rows)] != rows:
                raise Violation(f"the nodes hold other rows of partition {number} than consumers were told")


def _plain(row):
    return row.key, row.value, row.seq, row.timestamp, row.expired


def _held(node):
    """Returns the rows that a node holds, by partition; none if it has not heard of the feed yet."""
    found, feed = {}, node.feeds.get(SESSIONS)
    for partition in [] if feed is None else feed.partitions:
        blocks = [block for segment in partition.chain.segments for block in segment.read_blocks(0, 1 << 40)[0]]
        blocks += partition.tree.blocks_after(partition.flushed_seq)
        rows = [_plain(row) for block in blocks for row in Mutations(block)]
        if rows:
            found[partition.id] = rows
    return found
