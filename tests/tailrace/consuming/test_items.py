"""The latest state of a feed, read while the node loses history and feeds are dropped."""

import pytest

import tailrace
from tailrace import Put

KEYS = [b"key %d" % number for number in range(40)]


async def rest_of(items):
    rest = {}
    async for item in items:
        assert item.value != b"new", "it is of the other feed"
        rest[item.key] = item.value
    return rest


async def test_it_ends_if_what_was_there_at_its_beginning_was_lost(feed, lose):
    await feed.write([Put(key, b"kept") for key in KEYS])
    async with lose():
        await feed.write([Put(key, b"lost") for key in KEYS])
        items = feed.items()
        first = await anext(items)
        assert first.value == b"lost"
    left = [item async for item in items if item.version.partition != first.version.partition]
    state = [item async for item in feed.items() if item.version.partition != first.version.partition]
    assert left == state
    assert {item.value for item in left} == {b"kept"}


@pytest.mark.parametrize("written", [0, 5])
async def test_it_ends_if_all_was_lost(feed, lose, written):
    """Whether or not the new history has come further than the lost one."""
    async with lose():
        await feed.write([Put(key, b"lost") for key in KEYS])
        items = feed.items()
        first = await anext(items)
    for number in range(written):
        await feed.write([Put(key, b"%d" % number) for key in KEYS])
    others = {item.value async for item in items if item.version.partition != first.version.partition}
    assert b"lost" not in others
    assert written or not others, "nothing is left"


async def test_it_is_of_one_feed(client, feed):
    await feed.write([Put(key, b"old") for key in KEYS])
    items = feed.items()
    assert (await anext(items)).value == b"old"
    await client.drop_feed(feed.name)
    await (await client.create_feed(feed.name, partitions=4)).write([Put(key, b"new") for key in KEYS])
    with pytest.raises(tailrace.UnknownFeed, match="was dropped, and another one was created under its name"):
        await rest_of(items)


@pytest.mark.parametrize("since", ["beginning", "there"])
@pytest.mark.parametrize("on_rollback", ["follow", "restart"])
@pytest.mark.parametrize("kept", [0, 40])
async def test_a_stream_ends_at_positions_that_were_lost(feed, lose, since, on_rollback, kept):
    await feed.write([Put(key, b"kept") for key in KEYS[:kept]])
    async with lose():
        await feed.write([Put(key, b"lost") for key in KEYS])
        async with feed.consume(until="now") as stream:
            async for _ in stream:
                pass
        positions = stream.positions
    state = {}
    begin = positions if since == "there" else since
    async with feed.consume(begin, until=positions, on_rollback=on_rollback) as stream:
        async for event in stream:
            if isinstance(event, tailrace.Rollback) and event.keys is None:
                state.clear()
            elif isinstance(event, tailrace.Mutations):
                state.update(zip(event.keys(), event.values(), strict=True))
    assert set(state.values()) <= {b"kept"}
    assert all(status.state == "ended" for status in stream.status().partitions)


async def test_a_stream_ends_where_its_end_and_the_new_history_part(feed, lose):
    await feed.write([Put(key, b"kept") for key in KEYS])
    async with lose():
        await feed.write([Put(key, b"lost") for key in KEYS])
        async with feed.consume(until="now") as stream:
            async for _ in stream:
                pass
        positions = stream.positions
    for _ in range(3):
        await feed.write([Put(key, b"new") for key in KEYS])
    values = []
    async with feed.consume(until=positions) as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                values += event.values()
    assert set(values) == {b"kept"}
