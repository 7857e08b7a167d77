"""Three nodes as processes that change their leader by themselves: no call of a client fails, and no write is lost.

Each call has a task of its own that repeats it. The leader is lost in every way; then each task has to come on.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
import trio

import tailrace
from tailrace.indexes import MemoryIndex

from .group import Group, run_command, start
from .run import seed_of

pytestmark = pytest.mark.slow

# Far more seconds than anything here takes on a busy machine.
SECONDS_MAX = 500.0
PATIENCE_S = 200.0
# The calls that each task finishes between two losses. The first may have begun before the loss.
CALLS = 3
POLL_S = 0.05


@pytest.fixture
async def group(tmp_path, nursery):
    group = Group(tmp_path, 3, failover="auto")
    await group.connect(nursery)
    await group.start(group.nodes)
    yield group
    group.network.heal()
    group.end_at_once()


# How the leader is lost, and how it comes back


async def kill(group, leader):
    await group.kill(leader)
    await another_leader(group, leader)
    await start(leader)


async def pause(group, leader):
    leader.pause()
    await another_leader(group, leader)
    leader.proceed()


async def cut_off(group, leader):
    group.network.cut_off(leader)
    await another_leader(group, leader)
    group.network.heal()


async def stop(group, leader):
    await trio.to_thread.run_sync(leader.stop)
    await another_leader(group, leader)
    await start(leader)


async def hand_over(group, leader):
    await command(group, leader, lambda other: ("handover", "--to", other.address, "--node", leader.address))


async def promote(group, leader):
    await command(group, leader, lambda other: ("promote", "--node", other.address))


async def command(group, leader, arguments):
    """Repeats a command until it succeeds: a node that has just come back is refused until it has caught up."""
    others = itertools.cycle(node for node in group.nodes if node is not leader)
    while (await run_command(*arguments(next(others))))[0]:  # noqa: ASYNC110 - it is another process
        await trio.sleep(POLL_S)
    await another_leader(group, leader)


async def another_leader(group, former):
    while (leader := await group.leader()) in (None, former):  # noqa: ASYNC110 - they are other processes
        await trio.sleep(POLL_S)
    return leader


LOSSES = [kill, pause, cut_off, stop, hand_over, promote]


class Calls:
    """The tasks that call a client, and what they know to be written."""

    def __init__(self, client, feed):
        self.client = client
        self.feed = feed
        self.done = Counter()
        self.written = {}  # the last value of each key, once it is acknowledged
        self.rows = Counter()  # of each row, how often it was written
        self.is_over = False
        self._moved = trio.Event()

    READERS = ("consume", "follow")  # one session for the whole time
    CALLERS = (
        "put",
        "put_if_absent",
        "put_if_version",
        "delete_if_present",
        "write",
        "use_writer",
        "get_own",
        "items",
        "change_feeds",
        "ask",
    )

    async def repeat(self, name):
        for number in itertools.count():
            if self.is_over:
                return
            await getattr(self, name)(number)
            self._has_done(name)
            await trio.lowlevel.checkpoint()

    async def come_on(self):
        """Returns when each task has finished ``CALLS`` more calls."""
        goals = {name: self.done[name] + CALLS for name in (*self.READERS, *self.CALLERS)}
        while any(self.done[name] < goal for name, goal in goals.items()):
            await self._moved.wait()

    def _has_done(self, name):
        self.done[name] += 1
        self._moved.set()
        self._moved = trio.Event()

    def _note(self, key, value):
        self.rows[key, value] += 1
        self.written[key] = value

    async def put(self, number):
        key, value = b"put %d" % (number % 5), b"%d" % number
        await self.feed.put(key, value, level="quorum")
        self._note(key, value)

    async def put_if_absent(self, number):
        key = b"absent %d" % number
        await self.feed.put(key, b"v", level="quorum", if_absent=True)  # its own earlier try is no conflict
        self._note(key, b"v")

    async def put_if_version(self, number):
        item = await self.feed.get(b"counter", level="quorum")
        assert (0 if item is None else int(item.value)) == number
        version, value = (None, b"1") if item is None else (item.version, b"%d" % (number + 1))
        await self.feed.put(b"counter", value, level="quorum", if_version=version, if_absent=version is None)
        self._note(b"counter", value)

    async def delete_if_present(self, number):
        await self.feed.put(b"gone", b"%d" % number, level="quorum")
        self.rows[b"gone", b"%d" % number] += 1
        assert await self.feed.delete_if_present(b"gone", level="quorum") is not None
        assert await self.feed.delete_if_present(b"gone", level="quorum") is None
        self.rows[b"gone", None] += 1

    async def write(self, number):
        changes = [tailrace.Put(b"batch %d" % key, b"%d" % number) for key in range(8)]
        await self.feed.write(changes, level="quorum")
        for change in changes:
            self._note(change.key, change.value)

    async def use_writer(self, number):
        rows = [(b"writer %d" % (row % 7), b"%d.%d" % (number, row)) for row in range(50)]
        async with self.feed.writer(level="quorum", batch_rows=3) as writer:
            for key, value in rows:
                await writer.put(key, value)
        for key, value in rows:
            self._note(key, value)

    async def get_own(self, number):
        """A token of a write at level quorum is never lost."""
        version = await self.feed.put(b"own", b"%d" % number, level="quorum")
        self._note(b"own", b"%d" % number)
        item = await self.feed.get(b"own", at_least=version)
        assert int(item.value) == number
        (item,) = await self.feed.get_many([b"own"], level="quorum")
        assert int(item.value) == number

    async def items(self, number):
        before = dict(self.written)
        found = {item.key: item.value async for item in self.feed.items()}
        assert found.keys() >= before.keys()
        assert int(found[b"own"]) >= int(before[b"own"]) if b"own" in before else True

    async def consume(self):
        async with self.feed.consume() as stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._barriers, stream)
            async for _ in stream:
                pass

    async def _barriers(self, stream):
        while True:
            await stream.barrier()
            self._has_done("consume")
            await trio.sleep(POLL_S)

    async def follow(self):
        index = MemoryIndex()
        async with self.feed.follow(index, visibility="quorum") as follower:
            while True:
                before = dict(self.written)
                await follower.barrier()
                assert index.snapshot().keys() >= before.keys()
                self._has_done("follow")
                await trio.sleep(POLL_S)

    async def change_feeds(self, number):
        name = f"feed-{number}"
        await self.client.create_feed(name, partitions=1, exist_ok=False)
        await self.client.set_feed(name, replication="segment")
        assert name in [info.name for info in await self.client.feeds()]
        await self.client.drop_feed(name)

    async def ask(self, number):
        assert len(await self.feed.partitions()) == 3
        await self.client.status()


@pytest.mark.long
async def test_no_call_notices_that_another_node_leads(group):
    seed = seed_of(1)
    losses = LOSSES.copy()
    random.Random(seed).shuffle(losses)
    print(f"seed {seed}: {[loss.__name__ for loss in losses]}")
    with trio.fail_after(SECONDS_MAX):
        async with tailrace.connect(group.url, connect_timeout=PATIENCE_S, retry_for=PATIENCE_S) as client:
            feed = await client.create_feed("orders", partitions=3, retention="history")
            calls = Calls(client, feed)
            async with trio.open_nursery() as readers:
                for name in calls.READERS:
                    readers.start_soon(getattr(calls, name))
                async with trio.open_nursery() as callers:
                    for name in calls.CALLERS:
                        callers.start_soon(calls.repeat, name)
                    await calls.come_on()
                    for loss in losses:
                        await loss(group, await another_leader(group, None))
                        print(f"{trio.current_time():.1f} {loss.__name__}: {dict(calls.done)}")
                        await calls.come_on()
                    calls.is_over = True
                readers.cancel_scope.cancel()
            found = Counter()
            async with feed.consume(until="now") as stream:
                async for event in stream:
                    if isinstance(event, tailrace.Mutations):
                        found.update((row.key, row.value) for row in event)
    assert {row: (found[row], calls.rows[row]) for row in found | calls.rows if found[row] != calls.rows[row]} == {}
