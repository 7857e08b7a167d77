"""A node that comes back without what it had shown, and those who had seen it: followers, streams, stored positions."""

import sqlite3

import pytest
import trio
from tests.crashing_indexes import RowByRowIndex, TruncatingIndex

from tailrace import Delete, EndReason, Mutations, Positions, Put, Rollback, SnapshotEnd, StreamEnded
from tailrace.indexes import MemoryIndex, SQLiteIndex
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.wire.messages import Get


def partition_of(key):
    return partition_of_hash(key_hash(key), 4)


async def state_of(feed):
    return {item.key: item.value async for item in feed.items()}


def keys(count, start=0):
    return [b"key %d" % number for number in range(start, start + count)]


@pytest.fixture
def asked(monkeypatch):
    """The keys that were looked up, by whomever."""
    from tailrace_server.serving import get_requests

    found = []

    class Spy:
        @staticmethod
        def decode(body):
            asked = Get.decode(body)
            found.extend(asked.keys)
            return asked

    monkeypatch.setattr(get_requests, "Get", Spy)
    return found


class Opened:
    """Makes the index, or opens it again as another process would."""

    def __init__(self, path, kind):
        self.path, self.kind = path, kind
        self.memory = MemoryIndex()

    def index(self):
        return SQLiteIndex(self.path) if self.kind == "sqlite" else self.memory

    def state(self):
        if self.kind == "memory":
            return dict(self.memory.state)
        with sqlite3.connect(self.path) as connection:
            return dict(connection.execute("SELECT key, value FROM items").fetchall())


@pytest.fixture(params=["sqlite", "memory"])
def opened(request, tmp_path):
    return Opened(tmp_path / "index.db", request.param)


async def test_only_the_keys_that_were_lost_are_read_again(feed, lose, opened, asked):
    await feed.write([Put(key, b"kept") for key in keys(1000)])
    async with feed.follow(opened.index(), visibility="memory") as follower:
        await follower.barrier()
        applied = follower.applied_rows
        async with lose():
            lost = [Put(key, b"lost") for key in keys(20)] + [Delete(key) for key in keys(10, 100)]
            await feed.write([*lost, Put(b"new", b"lost")], level="memory")
            await follower.barrier()
            assert opened.state() != dict.fromkeys(keys(1000), b"kept")
        await follower.barrier()
        assert opened.state() == await state_of(feed) == dict.fromkeys(keys(1000), b"kept")
        assert sorted(asked) == sorted([*keys(20), *keys(10, 100), b"new"])
        assert follower.applied_rows - applied == 2 * 31
        await feed.put(b"new", b"after")
        await follower.barrier()
        assert opened.state() == await state_of(feed)


async def test_what_was_read_again_and_lost_too(feed, lose, opened):
    """The second time the index has rows that it has read at another place of the history."""
    await feed.write([Put(key, b"kept") for key in keys(50)])
    async with feed.follow(opened.index(), visibility="memory") as follower:
        await follower.barrier()
        for number in range(3):
            async with lose():
                await feed.write([Put(key, b"lost %d" % number) for key in keys(7, number)], level="memory")
                await feed.write([Delete(key) for key in keys(3, 2 * number)], level="memory")
                await follower.barrier()
            if number == 1:
                await feed.write([Put(b"between", b"v"), Delete(b"key 1")])
            await follower.barrier()
            assert opened.state() == await state_of(feed)


async def test_what_was_lost_while_nobody_followed(feed, lose, opened, asked):
    await feed.write([Put(key, b"kept") for key in keys(200)])
    async with lose(), feed.follow(opened.index(), visibility="memory") as follower:
        await follower.barrier()
        await feed.write([Put(key, b"lost") for key in keys(5)], level="memory")
        await follower.barrier()
    await feed.write([Put(b"key 3", b"other"), Put(b"key 9", b"other")])
    async with feed.follow(opened.index(), visibility="memory") as follower:
        await follower.barrier()
        assert opened.state() == await state_of(feed)
        assert follower.applied_rows < 20
    # All was after the copy, the ring reaches to the beginning, and so only what is above the fork was asked for.
    assert len(asked) <= 205


async def test_below_the_ring_the_partition_is_read_from_the_beginning(feed, lose, opened, asked):
    await feed.write([Put(key, b"kept") for key in keys(800)])
    async with feed.follow(opened.index(), visibility="memory", ring=5) as follower:
        await follower.barrier()
        async with lose():
            for _ in range(3):
                await feed.write([Put(key, b"lost") for key in keys(800)], level="memory")
                await follower.barrier()
        await follower.barrier()
        assert opened.state() == await state_of(feed)
    assert asked == []


async def test_connections_that_break_while_keys_are_read_again(running, feed, lose, opened):
    await feed.write([Put(key, b"kept") for key in keys(3000)])
    async with feed.follow(opened.index(), visibility="memory") as follower:
        await follower.barrier()
        async with lose():
            await feed.write([Put(key, b"lost") for key in keys(3000)], level="memory")
            await follower.barrier()
        with trio.move_on_after(20):
            async with trio.open_nursery() as nursery:

                async def break_them():
                    for _ in range(20):
                        await trio.sleep(0.01)
                        running.cut_connections()

                nursery.start_soon(break_them)
                await follower.barrier()
        await follower.barrier()
        assert opened.state() == await state_of(feed)


@pytest.mark.parametrize("index", [TruncatingIndex, RowByRowIndex])
async def test_indexes_of_other_kinds(client, lose, index):
    """One goes back by itself, and one has no transactions."""
    feed = await client.create_feed("one", partitions=1)
    made = index()
    async with feed.follow(made, visibility="memory") as follower:
        for number in range(3):
            await feed.write([Put(key, b"kept %d" % number) for key in keys(20, number)])
            await follower.barrier()
            async with lose():
                await feed.write([Put(key, b"lost") for key in keys(5, number)], level="memory")
                await feed.write([Delete(key) for key in keys(3, 7 + number)], level="memory")
                await follower.barrier()
                assert b"lost" in made.state.values()
            await follower.barrier()
            assert made.state == await state_of(feed)
    if index is TruncatingIndex:
        assert made.went_back


async def test_an_index_that_says_what_cannot_be(client, lose):
    class Forward(MemoryIndex):
        def rollback(self, partition, seq):
            return seq + 1

    feed = await client.create_feed("one", partitions=1)

    async def follow():
        async with feed.follow(Forward(), visibility="memory") as follower:
            await feed.put(b"k", b"kept")
            async with lose():
                await feed.put(b"k", b"lost", level="memory")
                await follower.barrier()
            await trio.sleep_forever()

    with pytest.raises(ValueError, match=r"rollback\(0, 1\) of the index returned 2, but has to return 0 to 1"):
        await follow()


# Without an index


class Cache:
    """What an application does with events, as the guide says."""

    def __init__(self):
        self.state = {}
        self.rollbacks = []
        self.refetched = []
        self.ends = []

    def take(self, event):
        if isinstance(event, Mutations):
            if event.refetched:
                self.refetched += event.keys()
            for mutation in event:
                if mutation.deleted:
                    self.state.pop(mutation.key, None)
                else:
                    self.state[mutation.key] = mutation.value
        elif isinstance(event, SnapshotEnd):
            self.ends.append((event.partition, event.last_seq))
        elif isinstance(event, Rollback):
            self.rollbacks.append(event)
            if event.keys is None:
                self.state = {k: v for k, v in self.state.items() if partition_of(k) != event.partition}


@pytest.fixture
async def consume(nursery, feed):
    """A function that starts a loop over a stream, and gives the stream and what it has made of the events."""

    async def start(since="beginning", state=(), **options):
        cache = Cache()
        cache.state = dict(state)

        async def run(*, task_status=trio.TASK_STATUS_IGNORED):
            try:
                async with feed.consume(since, visibility="memory", **options) as stream:
                    task_status.started(stream)
                    async for event in stream:
                        cache.take(event)
            except StreamEnded as error:
                cache.error = error

        return await nursery.start(run), cache

    return start


async def test_an_application_is_given_the_keys_and_then_their_values(feed, lose, consume):
    await feed.write([Put(key, b"kept") for key in keys(100)])
    stream, cache = await consume()
    await stream.barrier()
    async with lose():
        await feed.write([Put(b"key 1", b"lost"), Delete(b"key 2"), Put(b"new", b"lost")], level="memory")
        await stream.barrier()
    await stream.barrier()
    assert cache.state == await state_of(feed) == dict.fromkeys(keys(100), b"kept")
    assert sorted(key for event in cache.rollbacks for key in event.keys) == [b"key 1", b"key 2", b"new"]
    assert sorted(cache.refetched) == [b"key 1", b"key 2", b"new"]
    for event in cache.rollbacks:
        assert event.partition in {partition_of(key) for key in event.keys}


@pytest.mark.parametrize("options", [{"on_rollback": "restart"}, {"ring": 0}])
async def test_an_application_that_is_given_everything_again(feed, lose, consume, options):
    await feed.write([Put(key, b"kept") for key in keys(20)])
    stream, cache = await consume(**options)
    await stream.barrier()
    async with lose():
        await feed.put(b"key 1", b"lost", level="memory")
        await stream.barrier()
    await stream.barrier()
    assert cache.rollbacks == [Rollback(partition_of(b"key 1"), 0, None)]
    assert cache.state == await state_of(feed)
    assert cache.refetched == []


async def barriers_for_ever(stream):
    while True:
        await stream.barrier()


async def test_an_application_that_wants_no_rollback(feed, lose, consume):
    stream, cache = await consume(on_rollback="stop")
    await stream.barrier()
    async with lose():
        await feed.put(b"k", b"lost", level="memory")
        await stream.barrier()
    with pytest.raises(StreamEnded):
        await barriers_for_ever(stream)
    while not hasattr(cache, "error"):
        await trio.lowlevel.checkpoint()
    assert cache.error.reason is EndReason.ROLLED_BACK


async def test_stored_positions_have_no_ring(feed, lose, consume):
    """What they were given above is not known any more: the partition comes again from the beginning."""
    await feed.write([Put(key, b"kept") for key in keys(20)])
    stream, first = await consume()
    await stream.barrier()
    async with lose():
        await feed.put(b"key 1", b"lost", level="memory")
        await stream.barrier()
        positions = Positions.parse(str(stream.latest_positions))
    stream, second = await consume(positions, {**first.state, b"key 1": b"lost"})
    await stream.barrier()
    assert second.rollbacks == [Rollback(partition_of(b"key 1"), 0, None)]
    assert second.state == await state_of(feed)


async def test_positions_that_were_stored_in_the_middle_of_a_rollback(feed, lose, nursery):
    """They say that the rollback was not finished, and whoever goes on with them elsewhere begins anew."""
    await feed.write([Put(key, b"kept") for key in keys(20)])
    cache = Cache()
    async with feed.consume(visibility="memory") as stream:
        async with lose():
            await feed.put(b"key 1", b"lost", level="memory")
            while b"lost" not in cache.state.values():
                cache.take(await anext(stream))
        while not cache.rollbacks:
            cache.take(await anext(stream))
        middle = Positions.parse(str(stream.latest_positions))
    later = Cache()
    later.state = dict(cache.state)
    async with feed.consume(middle, visibility="memory", until="now") as stream:
        async for event in stream:
            later.take(event)
    assert later.rollbacks == [Rollback(partition_of(b"key 1"), 0, None)]
    assert later.state == await state_of(feed)


async def test_ten_thousand_keys_take_less_than_a_second_or_so(feed, lose, opened):
    count = 10_000
    await feed.write([Put(key, b"v" * 100) for key in keys(count)])
    async with feed.follow(opened.index(), visibility="memory") as follower:
        await follower.barrier()
        async with lose():
            await feed.write([Put(key, b"lost") for key in keys(count)], level="memory")
            await follower.barrier()
        begun = trio.current_time()
        await follower.barrier()
        seconds = trio.current_time() - begun
        assert opened.state() == dict.fromkeys(keys(count), b"v" * 100)
    assert seconds < 20, "far above what it takes, for machines that do other things"
