"""A handle with serializers: typed keys and values in and out; blocks, Arrow and indexes stay bytes."""

from __future__ import annotations

import pytest

import tailrace
from tailrace import BadValue, Delete, JSONSerializer, Mutations, Put
from tailrace.indexes import MemoryIndex


@pytest.fixture
def typed(client, feed):
    return client.feed(feed.name, serializer=JSONSerializer(), key_serializer=JSONSerializer())


async def test_single_rows(feed, typed):
    version = await typed.put(["a", 1], {"city": "Rome"})
    item = await typed.get(["a", 1], at_least=version)
    assert item[:3] == (["a", 1], {"city": "Rome"}, version)
    assert (await feed.get(b'["a",1]')).value == b'{"city":"Rome"}'
    with pytest.raises(tailrace.VersionConflict):
        await typed.put(["a", 1], 2, if_absent=True)
    await typed.write([Put("b", [1, 2]), Delete(["a", 1]), Put("c", 3)])
    assert [item and item.value for item in await typed.get_many([["a", 1], "b", "c"])] == [None, [1, 2], 3]
    await typed.delete("c")
    assert await typed.delete_if_present("c") is None
    assert await typed.delete_if_present("b") is not None
    with pytest.raises(TypeError, match="stands for a deletion"):
        await typed.put("a", None)
    with pytest.raises(ValueError, match="JSON has no such value"):
        await typed.put("a", object())


async def test_writers_items_and_streams(feed, typed):
    async with typed.writer() as writer:
        for number in range(300):
            await writer.put(number, {"n": number})
        await writer.write([Put("more", True), Delete("gone")])
        await writer.delete(0)
        with pytest.raises(TypeError):
            await writer.put(1, None)
    wanted = {number: {"n": number} for number in range(1, 300)} | {"more": True}
    assert {item.key: item.value async for item in typed.items()} == wanted
    assert {item.key async for item in feed.items()} == {b"%d" % number for number in range(1, 300)} | {b'"more"'}
    found = {}
    async with typed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                found.update(zip(event.keys(), event.values(), strict=True))
                assert [(row.key, row.value) for row in event] == list(zip(event.keys(), event.values(), strict=True))
                assert event.block.columns().keys() == event.raw.keys()
    assert {key: value for key, value in found.items() if value is not None} == wanted
    async with typed.consume(until="now", caught_up=True) as stream:
        rows = 0
        while events := await stream.poll(max_rows=7):
            for event in events:
                if isinstance(event, Mutations):
                    assert all(isinstance(row.key, int | str) for row in event)
                    rows += len(event)
            if stream.finished:
                break
        assert rows >= len(wanted)


async def test_a_row_that_cannot_be_read_is_not_lost(feed, typed):
    await typed.put("a", 1)
    version = await feed.put(b'"b"', b"{no json")
    with pytest.raises(
        BadValue, match=rf"key b'\"b\"' at seq {version.seq} of partition {version.partition}"
    ) as caught:
        await typed.get("b")
    assert caught.value.key == b'"b"'
    with pytest.raises(BadValue, match="or read the feed by a handle without a serializer"):
        async for _ in typed.items():
            pass
    positions = None
    async with typed.consume(until="now") as stream:
        async for event in stream:
            positions = stream.positions
            if isinstance(event, Mutations) and event.partition == version.partition:
                with pytest.raises(BadValue):
                    list(event)
                break
    await feed.put(b'"c"', b"3")
    found = {}
    async with typed.consume(positions, until="now") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                found.update({row.key: row.value for row in event.raw})
    assert found[b'"b"'] == b"{no json"


async def test_groups_and_stages(feed, typed):
    async with typed.stage() as stage:
        await stage.put("a", [1])
        sealed = await stage.seal()
    await typed.publish("sink", 0, [sealed])
    await typed.put("b", [2])
    found = {}
    async with typed.consume(group="readers") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                found.update(zip(event.keys(), event.values(), strict=True))
                await stream.commit()
            if len(found) == 2:
                break
    assert found == {"a": [1], "b": [2]}
    async with typed.consume(until="now") as stream:
        batches = [batch async for batch in stream.batches()]
    assert sorted(key for batch in batches for key in batch["key"].to_pylist()) == [b'"a"', b'"b"']


async def test_indexes_keep_bytes(typed):
    await typed.put("a", {"city": "Rome"})
    index = MemoryIndex()
    async with typed.follow(index) as follower:
        await follower.barrier()
    assert index.state == {b'"a"': b'{"city":"Rome"}'}


async def test_without_serializers_a_handle_takes_bytes(client, feed):
    handle = client.feed(feed.name, serializer=None)
    await handle.put(b"a", b"1")
    assert (await handle.get(b"a")).value == b"1"
    with pytest.raises(TypeError, match="serializer is 'json'"):
        client.feed(feed.name, serializer="json")
