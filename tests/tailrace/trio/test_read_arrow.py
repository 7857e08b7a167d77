"""The latest state as a table, and streams as batches; asyncio runs these tests, too."""

import pyarrow as pa
import pytest
from tests.tailrace.trio.test_write_arrow import items_of, table_of

import tailrace
from tailrace import EndReason
from tailrace.block.to_arrow import batch_schema


def pairs_of(table):
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


async def test_items_as_a_table(feed):
    await feed.write_arrow(table_of(1_000))
    await feed.write_arrow(table_of(500))
    await feed.delete(b"k7")
    items = feed.items()
    table = await items.to_arrow()
    assert table.schema == batch_schema()
    expected = items_of(1_000)
    del expected[b"k7"]
    assert table.num_rows == 999
    assert pairs_of(table) == expected
    assert table["partition"].to_pylist() == sorted(table["partition"].to_pylist())
    first = await feed.get(b"k1")
    [row] = [row for row in table.to_pylist() if row["key"] == b"k1"]
    assert (row["partition"], row["seq"], row["deleted"]) == (first.version.partition, first.version.seq, False)
    assert await items.to_arrow() == table, "again, and before the iterator has begun"


async def test_items_with_a_prefix_and_an_iterator_that_has_begun(feed):
    await feed.write_arrow(table_of(100))
    items = feed.items(key_prefix=b"k1")
    first = await anext(items)
    assert first.key in items_of(100)
    table = await items.to_arrow()
    assert pairs_of(table) == {key: value for key, value in items_of(100).items() if key.startswith(b"k1")}


async def test_a_feed_without_items(feed):
    table = await feed.items().to_arrow()
    assert table.schema == batch_schema()
    assert table.num_rows == 0


async def test_items_of_a_feed_that_does_not_exist(client):
    with pytest.raises(tailrace.UnknownFeed):
        await client.feed("none").items().to_arrow()


async def test_a_stream_as_batches(feed):
    await feed.write_arrow(table_of(100))
    await feed.delete(b"k5")
    async with feed.consume(until="now") as stream:
        batches = [batch async for batch in stream.batches()]
        assert stream.finished
        positions = stream.positions
    table = pa.Table.from_batches(batches)
    assert table.schema == batch_schema()
    assert table.num_rows == 101
    assert [row["key"] for row in table.to_pylist() if row["deleted"]] == [b"k5"]
    async with feed.consume(since=positions, until="now") as stream:
        assert [batch async for batch in stream.batches()] == []


async def test_positions_count_a_batch_as_its_event(client):
    feed = await client.create_feed("one", partitions=1)
    await feed.put(b"a", b"1")
    async with feed.consume() as stream:
        async for batch in stream.batches():
            assert batch["key"].to_pylist() == [b"a"]
            assert [at.seq for at in stream.positions.values()] in ([0], [])
            assert [at.seq for at in stream.latest_positions.values()] == [1]
            break
        await feed.put(b"b", b"2")
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                assert event.keys() == [b"b"], "the stream goes on behind the batches"
                break


@pytest.mark.parametrize("ring", [100, 0])
async def test_batches_after_a_rollback(feed, lose, ring):
    """With a ring the keys come again; without one no batch can tell of it."""
    await feed.put(b"k", b"kept")
    async with feed.consume(visibility="memory", ring=ring) as stream:
        batches = stream.batches()
        assert (await anext(batches))["value"].to_pylist() == [b"kept"]
        async with lose():
            await feed.put(b"k", b"lost", level="memory")
            assert (await anext(batches))["value"].to_pylist() == [b"lost"]
        if ring:
            assert (await anext(batches))["value"].to_pylist() == [b"kept"]
            return
        for _ in range(2):
            with pytest.raises(tailrace.StreamEnded, match="comes again from the beginning") as caught:
                await anext(batches)
            assert caught.value.reason is EndReason.ROLLED_BACK
        async for event in stream:  # the events go on
            if isinstance(event, tailrace.Mutations):
                assert event.values() == [b"kept"]
                break
