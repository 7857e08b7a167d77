import contextlib
import random
import sqlite3
import threading

import pytest
import trio
import trio.testing
from tests.picky_index import PickyIndex

import tailrace
from tailrace import Delete, Put
from tailrace.indexes import IndexBusy, MemoryIndex, SQLiteIndex, following, sqlite
from tailrace.indexes.applier import APPLY_ROWS_MAX
from tailrace.indexes.by_feed import table_of
from tailrace.model.hashing import key_hash, partition_of_hash


def partition_of(key):
    return partition_of_hash(key_hash(key), 4)


async def state_of(feed):
    return {item.key: item.value async for item in feed.items()}


def changes(rnd, count, keys=50):
    made = []
    for _ in range(count):
        key = b"key %d" % rnd.randrange(keys)
        made.append(Delete(key) if rnd.random() < 0.2 else Put(key, rnd.randbytes(5)))
    return made


class Recorder(MemoryIndex):
    """An index that notes what it is asked for."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def open(self):
        self.calls.append("open")
        return super().open()

    def apply(self, mutations, checkpoint):
        assert len({m.key for m in mutations}) == len(mutations), "of each key only the newest"
        self.calls.append(("apply", len(mutations)))
        super().apply(mutations, checkpoint)

    def rollback(self, partition, seq):
        self.calls.append(("rollback", partition))
        super().rollback(partition, seq)

    def clear(self, partition):
        self.calls.append(("clear", partition))
        super().clear(partition)

    def close(self):
        self.calls.append("close")
        super().close()


async def test_a_follower_that_is_entered_again_leaves_its_index_free(feed):
    index = MemoryIndex()
    follower = feed.follow(index)
    async with follower:
        pass
    with pytest.raises(RuntimeError, match="entered before"):
        async with follower:
            raise AssertionError("a second body began")
    async with feed.follow(index) as another:
        await another.barrier()


async def test_an_index_equals_the_state_at_a_barrier(feed):
    rnd = random.Random(3)
    index = MemoryIndex()
    async with feed.follow(index) as follower:
        for _ in range(20):
            await feed.write(changes(rnd, 30), level=rnd.choice(["memory", "disk"]))
            await follower.barrier()
            assert index.state == await state_of(feed)


async def test_it_goes_on_where_the_index_stands(feed):
    rnd = random.Random(4)
    index = Recorder()
    for _ in range(4):
        await feed.write(changes(rnd, 100))
        async with feed.follow(index) as follower:
            await follower.barrier()
            assert index.state == await state_of(feed)
            applied = follower.applied_rows
    assert applied < 100, "not from the beginning"
    assert index.calls.count("open") == index.calls.count("close") == 4


async def test_transactions_are_bounded(feed):
    index = Recorder()
    async with feed.writer() as writer:
        await writer.write([Put(b"%d" % number, b"v") for number in range(3 * APPLY_ROWS_MAX)])
    async with feed.follow(index) as follower:
        await follower.barrier()
    assert len(index.state) == 3 * APPLY_ROWS_MAX
    sizes = [call[1] for call in index.calls if call[0] == "apply"]
    assert max(sizes) < 3 * APPLY_ROWS_MAX


async def test_it_follows_through_broken_connections(running, feed):
    rnd = random.Random(5)
    index = MemoryIndex()
    async with feed.follow(index) as follower:
        for number in range(30):
            await feed.write(changes(rnd, 20))
            if number % 5 == 0:
                running.cut_connections()
            if number % 7 == 0:
                await follower.barrier()
                assert index.state == await state_of(feed)
        await follower.barrier()
        assert index.state == await state_of(feed)


@pytest.mark.parametrize("clean", [True, False])
async def test_it_follows_through_restarts(running, feed, clean):
    rnd = random.Random(6)
    index = Recorder()
    async with feed.follow(index) as follower:
        for _ in range(3):
            await feed.write(changes(rnd, 50))
            await (running.stop() if clean else running.kill())
            await running.start()
            await feed.write(changes(rnd, 50))
            await follower.barrier()
            assert index.state == await state_of(feed)
    assert not any(call[0] == "clear" for call in index.calls)


async def test_what_the_node_has_lost_leaves_the_index(running, feed, tmp_path):
    rnd = random.Random(7)
    index = Recorder()
    await feed.write(changes(rnd, 200))
    async with feed.follow(index, visibility="memory") as follower:
        await follower.barrier()
        kept = dict(index.state)
        running.copy_data(tmp_path / "copy")
        await feed.write([Put(b"lost", b"v"), Delete(next(iter(kept)))], level="memory")
        await follower.barrier()
        assert b"lost" in index.state
        await running.stop()
        running.put_back(tmp_path / "copy")
        await running.start()
        await follower.barrier()
        assert index.state == kept == await state_of(feed)
    assert ("rollback", partition_of(b"lost")) in index.calls
    assert not any(call[0] == "clear" for call in index.calls)


async def test_wait_for_a_version(feed):
    index = MemoryIndex()
    async with feed.follow(index) as follower:
        for number in range(20):
            version = await feed.put(b"k", b"%d" % number)
            await follower.wait_for(version)
            assert index.state[b"k"] == b"%d" % number


async def test_wait_for_a_version_that_is_lost(running, feed, tmp_path):
    index = MemoryIndex()
    await feed.put(b"k", b"1")
    async with feed.follow(index) as follower:
        await follower.barrier()
        running.copy_data(tmp_path / "copy")
        lost = await feed.put(b"k", b"lost")
        await running.stop()
        running.put_back(tmp_path / "copy")
        await running.start()
        await feed.put(b"k", b"2")
        await follower.barrier()
        with pytest.raises(tailrace.VersionLost):
            await follower.wait_for(lost)
        with pytest.raises(tailrace.VersionLost):
            await follower.wait_for(lost._replace(seq=100))


class Blocked(MemoryIndex):
    """An index that goes back when it is told to."""

    def __init__(self):
        super().__init__()
        self.may_go_back = threading.Event()

    def rollback(self, partition, seq):
        assert self.may_go_back.wait(60)
        return super().rollback(partition, seq)

    def clear(self, partition):
        assert self.may_go_back.wait(60)
        super().clear(partition)


@pytest.mark.parametrize("kept", [0, 1])
async def test_wait_for_a_version_that_is_newer_than_all_the_follower_has_heard_of(feed, lose, kept):
    """The index is above the version's seq, in a history that has just forked below it."""
    index = Blocked()
    for _ in range(kept):
        await feed.put(b"k", b"kept")
    async with feed.follow(index) as follower:
        async with lose():
            for number in range(5):
                await follower.wait_for(await feed.put(b"k", b"lost %d" % number))
        version = await feed.put(b"k", b"new")
        assert version.seq == kept + 1 < follower.positions[version.partition].seq
        came = trio.Event()

        async def wait():
            await follower.wait_for(version)
            came.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert not came.is_set()
            index.may_go_back.set()
        assert index.state[b"k"] == b"new"


async def test_each_write_is_read_while_history_forks_again_and_again(feed, lose):
    index = MemoryIndex()
    async with feed.follow(index) as follower:
        for number in range(4):
            async with lose():
                await follower.wait_for(await feed.put(b"k", b"lost"))
                await follower.wait_for(await feed.put(b"k", b"lost too"))
            value = b"kept %d" % number
            version = await feed.put(b"k", value)
            await follower.wait_for(version)
            assert index.state[b"k"] == value


async def test_who_waits_is_told_of_a_fork_after_which_nothing_was_written(feed, lose):
    await feed.put(b"k", b"1")
    async with feed.follow(MemoryIndex()) as follower:
        await follower.barrier()
        errors = []

        async def wait(version):
            with pytest.raises(tailrace.VersionLost, match="is lost: the history of partition"):
                await follower.wait_for(version)
            errors.append(version)

        async with trio.open_nursery() as nursery, lose():
            version = await feed.put(b"k", b"lost")
            await follower.wait_for(version)
            nursery.start_soon(wait, version._replace(seq=version.seq + 1))
            await trio.testing.wait_all_tasks_blocked()
            assert not errors, "it may still be written"
        assert len(errors) == 1


async def test_wait_for_a_version_of_a_partition_that_is_not_there(feed):
    version = await feed.put(b"k", b"v")
    async with feed.follow(MemoryIndex()) as follower:
        for partition in (4, -1, 1 << 40):
            with pytest.raises(
                ValueError, match=rf"is of partition {partition}, and the index follows 4 of feed 'orders'"
            ):
                await follower.wait_for(version._replace(partition=partition))


async def test_lag_and_positions(feed):
    await feed.put(b"k", b"v")
    async with feed.follow(MemoryIndex()) as follower:
        await follower.barrier()
        assert follower.lag == {0: 0, 1: 0, 2: 0, 3: 0}
        assert follower.positions.seqs()[partition_of(b"k")] == 1
        assert [status.partition for status in follower.status().partitions] == [0, 1, 2, 3]


async def test_an_index_of_another_feed(client, feed):
    index = MemoryIndex()
    await feed.put(b"k", b"v")
    async with feed.follow(index) as follower:
        await follower.barrier()
    other = await client.create_feed("other", partitions=4)
    with pytest.raises(tailrace.BadPosition, match="another feed"):
        async with other.follow(index):
            raise AssertionError("it was taken")
    assert index.state == {b"k": b"v"}


async def test_several_feeds_into_one_index(client, feed, tmp_path):
    index, second = (
        SQLiteIndex(tmp_path / "shop.db", table="{feed}"),
        await client.create_feed(f"{feed.name}-2", partitions=2),
    )
    await feed.put(b"k", b"first")
    await second.put(b"k", b"second")
    for value in (b"first", b"later"):
        await feed.put(b"k", value)
        async with feed.follow(index) as of_first, second.follow(index) as of_second:
            await of_first.barrier()
            await of_second.barrier()
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as database:
            tables = [table_of("{feed}", name) for name in (feed.name, second.name)]
            found = [database.execute(f"SELECT value FROM {table}").fetchall() for table in tables]
        assert found == [[(value,)], [(b"second",)]]


async def test_an_index_that_cannot_be_opened(feed):
    class Broken(Recorder):
        def open(self):
            raise OSError("no such disk")

    index = Broken()
    with pytest.raises(OSError, match="no such disk"):
        async with feed.follow(index):
            raise AssertionError("it was opened")
    assert index.calls == ["close"]


async def test_a_feed_that_is_not_there(client):
    index = Recorder()
    with pytest.raises(tailrace.UnknownFeed):
        async with client.feed("nobody").follow(index):
            raise AssertionError("it is there")
    assert index.calls == ["open", "close"]


async def barriers_for_ever(follower):
    while True:
        await follower.barrier()


@pytest.mark.parametrize("ask", ["barrier", "wait_for"])
@pytest.mark.parametrize("end", ["the body ends", "the index fails"])
async def test_nobody_waits_for_a_follower_that_has_ended(feed, ask, end):
    """A task outside of the body is told, and does not hang."""

    class Slow(MemoryIndex):
        def apply(self, mutations, checkpoint):
            if end == "the index fails" and mutations:
                raise OSError("disk full")

    later = (await feed.put(b"k", b"v"))._replace(seq=100)
    errors = []
    async with trio.open_nursery() as nursery:

        async def wait(follower):
            with pytest.raises(tailrace.StreamEnded) as caught:
                await (barriers_for_ever(follower) if ask == "barrier" else follower.wait_for(later))
            errors.append(caught.value)

        try:
            async with feed.follow(Slow()) as follower:
                nursery.start_soon(wait, follower)
                if end == "the index fails":
                    await trio.sleep_forever()
                await follower.barrier()  # the other task waits by now
        except OSError:
            assert end == "the index fails"
    assert len(errors) == 1


@pytest.mark.parametrize("index", [MemoryIndex, SQLiteIndex])
async def test_an_index_is_for_one_follower(feed, tmp_path, index):
    held = index(tmp_path / "index.db") if index is SQLiteIndex else index()
    async with feed.follow(held) as first:
        second = feed.follow(held)
        with pytest.raises(ValueError, match="is followed already"):
            await second.__aenter__()
        await first.wait_for(await feed.put(b"k", b"v"))
    async with feed.follow(held) as again:
        await again.barrier()
        assert again.positions[partition_of(b"k")].seq == 1


def lock_file(path):
    """Another program's transaction, which writes; until it is closed."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_a_file_that_another_program_has_locked_is_waited_for(feed, tmp_path, monkeypatch):
    """For longer than SQLite waits by itself."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.02)
    index = SQLiteIndex(tmp_path / "index.db")
    async with feed.follow(index) as follower:
        with contextlib.closing(lock_file(index.path)):
            version = await feed.put(b"k", b"v")
            with trio.move_on_after(0.5) as scope:
                await follower.wait_for(version)
            assert scope.cancelled_caught, "it cannot have been written"
        await follower.wait_for(version)


@pytest.mark.parametrize("lost", [False, True])
async def test_a_follower_is_left_while_its_file_is_locked(feed, lose, tmp_path, lost):
    """Also while it goes back. What was not stored comes again."""
    index = SQLiteIndex(tmp_path / "index.db")
    async with feed.follow(index) as follower:
        await follower.wait_for(await feed.put(b"k", b"1"))
        if lost:
            async with lose():
                await follower.wait_for(await feed.put(b"k", b"lost"))
                lock = lock_file(index.path)
        else:
            lock = lock_file(index.path)
        await feed.put(b"k", b"2")
        if not lost:  # else the loop waits for the index, as it has to go back
            await follower._stream.barrier()
    lock.close()
    async with feed.follow(index) as follower:
        await follower.barrier()
    with contextlib.closing(sqlite3.connect(index.path)) as read:
        assert read.execute("SELECT value FROM items").fetchall() == [(b"2",)]


async def test_entering_is_cancelled_while_the_file_is_locked(feed, tmp_path, monkeypatch):
    index = SQLiteIndex(tmp_path / "index.db")
    async with feed.follow(index):
        pass
    with contextlib.closing(lock_file(index.path)):
        with trio.move_on_after(0.1) as scope:
            async with feed.follow(index):
                raise AssertionError("it was opened")
        assert scope.cancelled_caught
        monkeypatch.setattr(following, "OPEN_BUSY_SECONDS", 0.1)
        with pytest.raises(IndexBusy, match="is locked by another program"):
            await feed.follow(index).__aenter__()
    async with feed.follow(index) as follower:
        await follower.barrier()


class TestSelections:
    async def test_a_prefix_selects_keys(self, feed, tmp_path):
        await feed.write([Put(b"a/1", b"x"), Put(b"b/1", b"x"), Put(b"a/2", b"x")])
        index = SQLiteIndex(tmp_path / "index.db")
        async with feed.follow(index, key_prefix=b"a/") as follower:
            await follower.barrier()
        await feed.write([Put(b"a/3", b"x"), Delete(b"a/1"), Put(b"b/2", b"x")])
        async with feed.follow(index, key_prefix=b"a/") as follower:
            await follower.barrier()
            with contextlib.closing(sqlite3.connect(index.path)) as connection:
                assert connection.execute("SELECT key FROM items ORDER BY key").fetchall() == [(b"a/2",), (b"a/3",)]

    @pytest.mark.parametrize("kind", ["memory", "sqlite"])
    async def test_an_index_keeps_the_prefix_that_it_began_with(self, feed, tmp_path, kind):
        index = MemoryIndex() if kind == "memory" else SQLiteIndex(tmp_path / "index.db")
        await feed.put(b"a/1", b"x")
        async with feed.follow(index, key_prefix=b"a/") as follower:
            await follower.barrier()
        for prefix in (b"", b"b/"):
            with pytest.raises(ValueError, match="was filled with key_prefix=b'a/'"):
                async with feed.follow(index, key_prefix=prefix):
                    raise AssertionError("a body began")
        async with feed.follow(index, key_prefix=b"a/"):
            pass

    async def test_partitions_select_rows(self, feed):
        keys = [b"key %d" % number for number in range(40)]
        await feed.write([Put(key, b"x") for key in keys])
        index = MemoryIndex()
        async with feed.follow(index, partitions=[1, 3]) as follower:
            await follower.barrier()
            assert index.state.keys() == {key for key in keys if partition_of(key) in (1, 3)}
            assert list(follower.positions) == [1, 3]
            other = next(key for key in keys if partition_of(key) == 0)
            with pytest.raises(ValueError, match="of which this is none"):
                await follower.wait_for(await feed.put(other, b"y"))
        with pytest.raises(ValueError, match=r"partitions \[1\] .* leaves out"):
            async with feed.follow(index, partitions=[0, 3]):
                raise AssertionError("a body began")
        async with feed.follow(index) as follower:
            await follower.barrier()
            assert index.state.keys() == set(keys)

    async def test_wrong_selections(self, feed):
        with pytest.raises(ValueError, match="partitions is empty"):
            feed.follow(MemoryIndex(), partitions=[])
        with pytest.raises(TypeError, match=r"\.encode"):
            feed.follow(MemoryIndex(), key_prefix="a")


class Picky(MemoryIndex):
    """An index that cannot take some values."""

    refuses = b"bad"

    def apply(self, mutations, checkpoint):
        for row in mutations:
            if row.value is not None and row.value.startswith(self.refuses):
                raise ValueError(f"cannot take {row.value}")
        super().apply(mutations, checkpoint)


class TestParking:
    @pytest.fixture
    async def parked(self, client):
        """A function that reads the parked rows, as {key: row}."""

        async def read():
            items = client.feed("orders.parked").items()
            return {item.key: tailrace.indexes.ParkedRow.parse(item.key, item.value) async for item in items}

        return read

    async def test_bad_rows_are_parked_and_the_others_are_applied(self, feed, parked):
        index = Picky()
        version = await feed.put(b"b", b"bad one")
        await feed.write([Put(b"key %d" % number, b"good") for number in range(50)])
        async with feed.follow(index, on_error="park") as follower:
            await follower.barrier()
            await follower.wait_for(version)
            assert len(index.state) == 50
            assert b"b" not in index.state
            assert follower.parked_rows == 1
            await feed.put(b"c", b"bad two")
            await follower.barrier()
            assert follower.parked_rows == 2
            assert follower.lag == dict.fromkeys(range(4), 0)
        found = await parked()
        assert found.keys() == {b"b", b"c"}
        assert (found[b"b"].version, found[b"b"].value) == (version, b"bad one")
        assert found[b"b"].reason == "ValueError: cannot take b'bad one'"
        async with feed.follow(index, on_error="park") as follower:
            await follower.barrier()
            assert follower.parked_rows == 0

    async def test_without_it_the_follower_ends(self, feed):
        await feed.put(b"b", b"bad")
        with pytest.raises(ValueError, match="cannot take"):
            async with feed.follow(Picky()) as follower:
                await follower.barrier()

    async def test_an_error_of_the_store_ends_it(self, feed):
        class Broken(MemoryIndex):
            def apply(self, mutations, checkpoint):
                raise ValueError("takes nothing, not even an empty batch")

        await feed.put(b"b", b"x")
        with pytest.raises(ValueError, match="takes nothing"):
            async with feed.follow(Broken(), on_error="park") as follower:
                await follower.barrier()

    async def test_rows_are_parked_again_if_the_positions_were_not_stored(self, feed, parked):
        class Dies(Picky):
            empty = 0

            def apply(self, mutations, checkpoint):
                if not len(mutations):
                    self.empty += 1
                    if self.empty == 2:  # the last call of the first batch
                        raise OSError("it is killed")
                super().apply(mutations, checkpoint)

        index = Dies()
        await feed.write([Put(b"b", b"bad"), *[Put(b"key %d" % number, b"good") for number in range(9)]])
        with pytest.raises(OSError, match="killed"):
            async with feed.follow(index, on_error="park") as follower:
                await follower.barrier()
        async with feed.follow(index, on_error="park") as follower:
            await follower.barrier()
            assert follower.parked_rows == 1
        assert (await parked()).keys() == {b"b"}
        assert len(index.state) == 9

    async def test_what_on_error_may_be(self, feed):
        with pytest.raises(ValueError, match="has to be 'stop' or 'park'"):
            feed.follow(MemoryIndex(), on_error="skip")


async def test_parked_rows_are_replayed(feed):
    index = PickyIndex()
    for key, value in ((b"a", b"good"), (b"b", b"bad"), (b"c", b"bad"), (b"d", b"good")):
        await feed.put(key, value)
    await feed.delete(b"d")
    async with feed.follow(index, on_error="park") as follower:
        await follower.barrier()
        assert follower.parked_rows == 3
    await feed.put(b"c", b"mended")
    index.is_mended = True
    assert await feed.replay_parked() == (2, 1)
    assert await feed.replay_parked() == (0, 0)
    async with feed.follow(index, on_error="park") as follower:
        await follower.barrier()
        assert follower.parked_rows == 0
    assert index.state == {b"a": b"good", b"b": b"bad", b"c": b"mended"}


async def test_without_parked_rows_there_is_nothing_to_replay(feed):
    with pytest.raises(tailrace.UnknownFeed, match=r"\.parked"):
        await feed.replay_parked()
