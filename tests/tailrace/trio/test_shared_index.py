"""The members of a group fill one index: each the partitions that it owns, and the index refuses former owners."""

import contextlib
import dataclasses
import sqlite3

import pytest
import trio
from tests.tailrace_server.replication.made_set import until

from tailrace import Delete, Put
from tailrace.indexes import MemoryIndex, SQLiteIndex

LEASE_S = 3.0
GROUP = "indexers"


@pytest.fixture
def node_config(node_config):
    return dataclasses.replace(node_config, limits=dataclasses.replace(node_config.limits, group_lease_s=LEASE_S))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index.db"


class NotingIndex(SQLiteIndex):
    """An index that stores, in the same transaction, each row that it is given. So a row that came twice is seen."""

    def _complete(self, connection):
        super()._complete(connection)
        connection.execute("CREATE TABLE IF NOT EXISTS noted (partition, seq)")

    def _store_mutations(self, connection, mutations):
        super()._store_mutations(connection, mutations)
        connection.executemany(
            "INSERT INTO noted VALUES (?, ?)", zip(mutations.partitions, mutations.seqs, strict=True)
        )


def query(path, sql):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def state(path):
    return dict(query(path, "SELECT key, value FROM items"))


def twice(path):
    return query(path, "SELECT partition, seq FROM noted GROUP BY partition, seq HAVING count(*) > 1")


async def write(feed, first, rows=200):
    changes = [Put(b"k%04d" % number, b"v%d" % number) for number in range(first, first + rows)]
    await feed.write(changes)
    return {change.key: change.value for change in changes}


async def test_a_member_alone_has_all_partitions_and_the_node_shows_its_lag(client, feed, path):
    expected = await write(feed, 0)
    async with feed.follow(NotingIndex(path), group=GROUP) as follower:
        await until(lambda: state(path) == expected)
        await follower.barrier()
        version = await feed.put(b"late", b"v")
        await follower.wait_for(version)
        assert state(path)[b"late"] == b"v"
        await feed.delete(b"late")
        assert follower.applied_rows >= 201
        await follower.barrier()
        assert follower.lag == {0: 0, 1: 0, 2: 0, 3: 0}
    assert state(path) == expected
    assert twice(path) == []


async def test_members_share_an_index_and_nothing_is_applied_twice(feed, path):
    expected = await write(feed, 0)
    async with feed.follow(NotingIndex(path), group=GROUP) as one:
        await until(lambda: state(path) == expected)
        async with feed.follow(NotingIndex(path), group=GROUP) as two:
            await until(lambda: len(one.status().partitions) == len(two.status().partitions) == 2)
            expected |= await write(feed, 200)
            await until(lambda: state(path) == expected)
            assert one.positions.keys() | two.positions.keys() == {0, 1, 2, 3}
            assert not one.positions.keys() & two.positions.keys()
        await until(lambda: len(one.status().partitions) == 4)
        expected |= await write(feed, 400)
        await feed.write([Delete(key) for key in list(expected)[:50]])
        expected = dict(list(expected.items())[50:])
        await until(lambda: state(path) == expected)
    assert twice(path) == []


async def test_a_later_start_goes_on_at_the_positions_of_the_index(feed, path):
    for start in range(3):
        await write(feed, 200 * start)
        async with feed.follow(NotingIndex(path), group=GROUP):
            await until(lambda start=start: len(state(path)) == 200 * (start + 1))
    assert twice(path) == []


async def test_a_group_whose_generations_began_anew_goes_on_with_its_index(client, feed, path):
    """The index has later generations than the node, which was restored, or has forgotten the group."""
    await write(feed, 0)
    index = SQLiteIndex(path)
    index.open_shared(GROUP)
    index.take(dict.fromkeys(range(4), 1000))
    index.close()
    async with feed.follow(SQLiteIndex(path), group=GROUP):
        await until(lambda: len(state(path)) == 200)
    assert {each for (each,) in query(path, "SELECT generation FROM tailrace_owners")} == {1_001}


async def test_rows_that_the_index_refuses_come_again_to_the_next_owner(feed, path):
    expected = await write(feed, 0)
    async with feed.follow(NotingIndex(path), group=GROUP) as follower:
        await until(lambda: state(path) == expected)
        other = SQLiteIndex(path)
        other.open_shared(GROUP)
        assert other.take({0: 50, 2: 60}).later == {}
        other.close()
        expected |= await write(feed, 200)
        await until(lambda: state(path) == expected)
        await until(lambda: len(follower.status().partitions) == 4)
    generations = dict(query(path, "SELECT partition, generation FROM tailrace_owners"))
    assert (generations[0], generations[2]) == (51, 61)
    assert twice(path) == []


async def test_a_follower_without_the_group_ends_its_members(feed, path):
    await write(feed, 0)

    async def member(task_status):
        async with feed.follow(SQLiteIndex(path), group=GROUP):
            await until(lambda: len(state(path)) == 200)
            task_status.started()
            await trio.sleep_forever()

    async def ends(task_status):
        with pytest.raises(RuntimeError, match="not of group 'indexers'"):
            await member(task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(ends)
        # Beside the member, not in its body: the member may end before this one has all rows.
        async with feed.follow(SQLiteIndex(path)) as alone:
            await alone.barrier()
            await write(feed, 200)
            await alone.barrier()
    assert len(state(path)) == 400


async def test_an_index_that_cannot_be_shared_is_refused(feed):
    with pytest.raises(TypeError, match=r"cannot be shared by the members of group 'indexers'.*SQLiteIndex"):
        feed.follow(MemoryIndex(), group=GROUP)
    with pytest.raises(ValueError, match="partitions has no meaning in a group"):
        feed.follow(MemoryIndex(), group=GROUP, partitions=[0])
    with pytest.raises(ValueError, match="a name has 0 characters"):
        feed.follow(MemoryIndex(), group="")


async def test_another_prefix_is_refused(feed, path):
    async with feed.follow(SQLiteIndex(path), group=GROUP):
        with pytest.raises(ValueError, match="was filled with key_prefix=b''"):
            async with feed.follow(SQLiteIndex(path), group=GROUP, key_prefix=b"k"):
                pass


async def test_bad_rows_are_parked_by_each_member(client, feed, path):
    class Picky(SQLiteIndex):
        def _store_mutations(self, connection, mutations):
            if b"bad" in mutations.keys:
                raise ValueError("no bad ones")
            super()._store_mutations(connection, mutations)

    expected = await write(feed, 0)
    await feed.put(b"bad", b"v")
    async with feed.follow(Picky(path), group=GROUP, on_error="park"):
        await until(lambda: state(path) == expected)
        parked = client.feed(f"{feed.name}.parked")
        async with feed.follow(Picky(path), group=GROUP, on_error="park"):
            expected |= await write(feed, 200)
            await until(lambda: state(path) == expected)
    assert [item.key async for item in parked.items()] == [b"bad"]
