"""Arrow data through a feed and a writer; asyncio runs these tests, too."""

import pyarrow as pa
import pytest

from tailrace import Mutations


def table_of(count, first=0):
    numbers = range(first, first + count)
    strings = ([f"k{n}" for n in numbers], [f"value {n}" for n in numbers])
    return pa.table({name: pa.array(each, pa.string()) for name, each in zip(("key", "value"), strings, strict=True)})


async def state_of(feed):
    return {item.key: item.value async for item in feed.items()}


def items_of(count):
    return {b"k%d" % n: b"value %d" % n for n in range(count)}


@pytest.mark.parametrize("level", [None, "memory", "disk"])
async def test_a_table_is_written(feed, level):
    written = await feed.write_arrow(table_of(1_000), level=level)
    assert sum(versions.last_seq for versions in written.values()) == 1_000
    assert {versions.first_seq for versions in written.values()} == {1}
    assert sorted(written) == sorted({versions.partition for versions in written.values()})
    assert await state_of(feed) == items_of(1_000)


async def test_names_of_columns_and_deletions(feed):
    await feed.write_arrow(table_of(10))
    changes = pa.table({"id": ["k1", "k2", "new"], "row": [None, "x", "y"], "gone": [True, None, False]})
    written = await feed.write_arrow(changes, key="id", value="row", deleted="gone")
    assert sum(v.last_seq - v.first_seq + 1 for v in written.values()) == 3
    expected = items_of(10) | {b"k2": b"x", b"new": b"y"}
    del expected[b"k1"]
    assert await state_of(feed) == expected


async def test_the_batches_of_a_stream_are_written_to_another_feed(client, feed):
    await feed.write_arrow(table_of(100))
    await feed.delete(b"k5")
    other = await client.create_feed("other", partitions=3)
    async with feed.consume(until="now") as stream, other.writer() as writer:
        async for event in stream:
            if isinstance(event, Mutations):
                await writer.write_arrow(event.to_arrow(), deleted="deleted")
    expected = items_of(100)
    del expected[b"k5"]
    assert await state_of(other) == expected


async def test_bad_rows_of_a_table_are_told_before_anything_is_written(feed):
    table = pa.concat_tables([table_of(70_000), pa.table({"key": [None], "value": ["v"]}, table_of(0).schema)])
    with pytest.raises(ValueError, match="row 70000 ") as caught:
        await feed.write_arrow(table)
    assert caught.value.__notes__ == [
        "nothing was added",
        "of this call, these partitions have acknowledged rows: none",
    ]
    assert await state_of(feed) == {}


async def test_what_was_written_before_a_bad_batch_is_told(feed):
    def batches():
        yield table_of(10)
        yield table_of(10).rename_columns(["key", "other"])

    with pytest.raises(ValueError, match="there is no column 'value'") as caught:
        await feed.write_arrow(batches())
    [counted, told] = caught.value.__notes__
    assert counted == "the 10 rows before these were added"
    assert "(seqs 1 to " in told
    assert await state_of(feed) == items_of(10)


async def test_rows_of_a_writer_keep_their_order(feed):
    async with feed.writer(linger_s=3600.0) as writer:
        await writer.put(b"k1", b"before")
        await writer.write_arrow(table_of(3))
        await writer.put(b"k2", b"after")
        assert sum(versions.last_seq for versions in (await writer.flush()).values()) == 5
    assert await state_of(feed) == items_of(3) | {b"k2": b"after"}


async def test_a_writer_goes_on_after_a_bad_table(feed):
    async with feed.writer() as writer:
        with pytest.raises(TypeError, match="'key' is of Arrow type int64"):
            await writer.write_arrow(pa.table({"key": [1], "value": ["v"]}))
        await writer.write_arrow(table_of(2))
    assert await state_of(feed) == items_of(2)


async def test_a_writer_tells_what_was_acknowledged(feed):
    async with feed.writer() as writer:
        assert writer.acknowledged == {}
        await writer.write_arrow(table_of(100))
        while sum(versions.last_seq for versions in writer.acknowledged.values()) < 100:
            await feed.get(b"k")
        acknowledged = writer.acknowledged
        assert await writer.flush() == acknowledged
        assert writer.acknowledged == {}


async def test_a_writer_that_was_left_takes_no_table(feed):
    async with feed.writer() as writer:
        pass
    with pytest.raises(ValueError, match="the writer was left"):
        await writer.write_arrow(table_of(1))


async def test_rows_of_many_blocks_pass_a_small_bound(client):
    feed = await client.create_feed("bounded", partitions=2)
    values = pa.array([bytes([n % 256]) * 60_000 for n in range(100)], pa.binary())
    table = pa.table({"key": [f"k{n}" for n in range(100)], "value": values})
    async with feed.writer(in_flight_bytes=100_000) as writer:
        await writer.write_arrow(table)
    found = await state_of(feed)
    assert len(found) == 100
    assert found[b"k99"] == bytes([99]) * 60_000
