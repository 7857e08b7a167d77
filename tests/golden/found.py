"""Everything that a client finds at a node, in a form that compares and goes into JSON."""

from __future__ import annotations

import hashlib

from tests.golden.meaning import to_json

import tailrace

# Longer values are told by their digest.
_SHOWN_BYTES = 100


def shown(value):
    """A value as told.json has it."""
    if value is None or len(value) <= _SHOWN_BYTES:
        return None if value is None else value.decode()
    return f"sha256 {hashlib.sha256(value).hexdigest()}"


async def found_in(client):
    """By feed: its settings, the failover log of each partition, and its rows."""
    return {info.name: await _found_of(client, info) for info in await client.feeds()}


async def _found_of(client, info):
    feed = client.feed(info.name)
    settings = {**info._asdict(), "feed_id": info.feed_id.hex()}
    for name in ("level", "ttl_s"):
        if settings[name] is None:
            del settings[name]  # releases before it have data without one
    return {"settings": settings, "logs": await logs_of(feed), "rows": await rows_of(feed, info)}


def sinks_of(node):
    """The last batch of each sink, by feed and partition, as the node has them."""
    return {
        feed.info.name: [to_json(partition.sinks.as_of(partition.high_seq)) for partition in feed.partitions]
        for feed in node.feeds
    }


async def logs_of(feed):
    """The failover log of each partition, as a consumer of everything has it."""
    async with feed.consume(until="now") as stream:
        async for _ in stream:
            pass
        return [stream.positions[number].log.to_json() for number in sorted(stream.positions)]


async def rows_of(feed, info):
    """All mutations of a history, the items of a compact feed, with the version and the time of each."""
    if info.retention == "history":
        rows = [row async for row in _mutations(feed)]
    else:
        rows = [
            [i.version.partition, i.version.seq, i.version.branch.hex(), i.timestamp, i.key.decode(), shown(i.value)]
            async for i in feed.items()
        ]
    return sorted(rows)


async def _mutations(feed):
    async with feed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                for row in event:
                    value = None if row.deleted else shown(row.value)
                    yield [event.partition, row.seq, event.branch.hex(), row.timestamp, row.key.decode(), value]


async def state_of(feed):
    """The present value of each key."""
    return {item.key.decode(): shown(item.value) async for item in feed.items()}


async def applied(stream, state):
    """Applies a stream to a state by key; the number of its mutations."""
    count = 0
    async for event in stream:
        if isinstance(event, tailrace.Mutations):
            for row in event:
                count += 1
                if row.deleted:
                    state.pop(row.key.decode(), None)
                else:
                    state[row.key.decode()] = shown(row.value)
    return count
