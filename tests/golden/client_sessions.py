"""Sessions of the SDK with one node, as programs: record.py plays them with a node, the tests with the recordings.

A session changes the node's state by its requests alone. So the recorded frames lead another node to the same state.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager

import trio
from tests.golden.found import shown

import tailrace
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.wire.opcodes import Opcode
from tailrace.wire.progress import Progress

BRANCH_OF_NO_NODE = bytes(range(16))
# The bytes of a value that is worth compressing.
LONG = b"Rome " * 100


def rows_told(event):
    return [[event.partition, row.seq, row.key.decode(), shown(row.value), row.timestamp] for row in event]


async def read(stream, until=None):
    """What a stream tells, as JSON, until ``until`` events are there, or to its end."""
    found = []
    async for event in stream:
        if isinstance(event, tailrace.Mutations):
            found += rows_told(event)
        elif isinstance(event, tailrace.Rollback):
            found.append(["rollback", event.partition, event.seq])
        if until is not None and len(found) >= until:
            break
    return found


def item_told(item):
    return None if item is None else [item.version.partition, item.version.seq, shown(item.value), item.timestamp]


def told_error(error):
    return [type(error).__name__, str(error)]


@asynccontextmanager
async def failing(stage, name):
    """The body fails with an error of the SDK, which is told."""
    try:
        yield
    except tailrace.TailraceError as error:
        stage.tell(name, told_error(error))
    else:
        raise AssertionError(f"{name}: there was no error")


async def writes(stage):
    """Feeds, writes at each level of a node that is alone, conditions, look-ups, settings."""
    async with stage.client(name="writes") as client:
        orders = await client.create_feed("orders", partitions=2)
        await client.create_feed("orders", partitions=2)
        async with failing(stage, "exists"):
            await client.create_feed("orders", partitions=4)
        log = await client.create_feed(
            "log", partitions=1, retention="history", history_age_s=3_600.0, history_bytes=1 << 20
        )
        await client.create_feed("copied", partitions=1, replication="segment", tombstone_age_s=1_000.5)
        for level in ("memory", "disk"):
            await orders.put(b"at " + level.encode(), b"1", level=level)
        version = await orders.put(b"a", b"1")
        stage.tell("version", [version.partition, version.seq])
        await orders.put(b"a", b"2", if_version=version)
        async with failing(stage, "conflict"):
            await orders.put(b"a", b"3", if_version=version)
        async with failing(stage, "absent"):
            await orders.put(b"a", b"3", if_absent=True)
        await orders.put(b"empty", b"")
        await orders.delete(b"a")
        stage.tell("nothing", await orders.delete_if_present(b"a"))
        await orders.write([tailrace.Put(b"b", LONG), tailrace.Put(b"c", b"1"), tailrace.Delete(b"at disk")])
        async with log.writer() as writer:
            for number in range(30):
                await writer.put(b"key %d" % number, LONG + b"%d" % number)
        stage.tell("got", item_told(await orders.get(b"b")))
        many = await orders.get_many([b"a", b"b", b"empty", b"none"], level="memory")
        stage.tell("many", [item_told(item) for item in many])
        stage.tell("feeds", [info._asdict() | {"feed_id": None} for info in await client.feeds()])
        stage.tell("partitions", [[info.id, info.high_seq] for info in await orders.partitions()])
        changed = await client.set_feed("log", history_age_s=math.inf, history_bytes=2 << 20)
        stage.tell("changed", [changed.history_age_s, changed.history_bytes])
        status = await client.status()
        stage.tell("status", [status.software, status.healthy, status.node_id.hex()])
        await client.drop_feed("log")
        async with failing(stage, "dropped"):
            await log.put(b"k", b"v")


async def streams(stage):
    """Consumers: a snapshot, live rows, barriers, filters, resumes, rollbacks."""
    async with stage.client(name="streams") as client:
        orders = await client.create_feed("orders", partitions=1)
        await orders.write([tailrace.Put(b"key %d" % number, b"%d" % number) for number in range(20)])
        await orders.write([tailrace.Delete(b"key 3"), tailrace.Put(b"key 4", LONG)])
        async with orders.consume(until="now") as stream:
            stage.tell("snapshot", await read(stream))
            resumed = stream.positions
            stage.tell("positions", [[p.seq, p.log.to_json()] for p in resumed.values()])
        await live(stage, orders)
        for name, options in {
            "resumed": {"since": resumed},
            "prefix": {"key_prefix": b"key 1"},
            "keys": {"keys_only": True},
            "memory": {"visibility": "memory"},
        }.items():
            async with orders.consume(until="now", **options) as stream:
                stage.tell(name, await read(stream))
        await rolled_back(stage, orders, resumed)


async def live(stage, orders):
    """Rows that come while a consumer listens, and a barrier behind them."""
    async with orders.consume("now") as stream, trio.open_nursery() as nursery:
        found = []

        async def write():
            for number in range(3):
                await orders.put(b"live %d" % number, b"1")
            await stream.barrier()
            nursery.cancel_scope.cancel()

        nursery.start_soon(write)
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                found += rows_told(event)
    stage.tell("live", found)


async def rolled_back(stage, orders, positions):
    """A consumer whose history the node does not know has to begin anew; first it asks what would become of it."""
    log = FailoverLog([(BRANCH_OF_NO_NODE, 1, 0)])
    strange = Positions(positions.cluster_id, positions.feed_id, {0: Position.at(log, 9)})
    explained = await orders.explain_resume(strange)
    stage.tell("explained", {str(number): found.reason for number, found in explained.items()})
    async with orders.consume(strange, until="now") as stream:
        stage.tell("rolled back", await read(stream))


async def segments(stage):
    """A copy by segments, and a consumer that catches up by them."""
    async with stage.client(name="segments") as client:
        orders = await client.create_feed("orders", partitions=1)
        await orders.write([tailrace.Put(b"key %d" % number, LONG) for number in range(50)])
        await orders.fetch(stage.scratch / "copy")
        reader = tailrace.SegmentReader(stage.scratch / "copy")
        stage.tell("copied", sorted(row.key.decode() for event in reader.mutations(0) for row in event))
        await orders.put(b"behind", b"1")
        async with orders.consume(until="now", catch_up="segments") as stream:
            stage.tell("caught up", await read(stream))


async def stages(stage):
    """Batches of a sink, as Spark publishes them: staged by tasks, published once."""
    async with stage.client(name="stages") as client:
        orders = await client.create_feed("orders", partitions=2)
        sealed = []
        for task in range(2):
            async with orders.stage() as made:
                for number in range(10):
                    await made.put(b"task %d, key %d" % (task, number), LONG)
                sealed.append(await made.seal())
        stage.tell("sealed", [[each.blocks, each.rows, each.digest] for each in sealed])
        published = await orders.publish("job", 1, sealed)
        stage.tell("published", {str(p): [r.first_seq, r.last_seq] for p, r in published.written.items()})
        again = await orders.publish("job", 1, sealed)
        stage.tell("again", [{str(p): r.first_seq for p, r in again.written.items()}, list(again.skipped)])
        async with failing(stage, "changed"):
            await orders.publish("job", 1, [sealed[0]])
        async with failing(stage, "behind"):
            await orders.publish("job", 0, [sealed[0]])
        async with failing(stage, "unknown stage"):
            await orders.publish("job", 2, [sealed[0]])


async def tokens(stage):
    """Tokens that are made, listed, used and revoked."""
    async with stage.client(name="admin", token=stage.told["admin"]) as client:
        await client.create_feed("orders", partitions=1)
        await client.create_feed("other", partitions=1)
        token = await client.create_token(
            "writer", role="write", feeds=["orders"], key_prefix=b"key ", expires_s=86_400.0
        )
        await client.create_token("browser", role="read", certificate="CN=browser")
        stage.tell("tokens", [[info.name, info.role, list(info.feeds)] for info in await client.tokens()])
        async with stage.client(name="writer", token=token) as other:
            await other.feed("orders").put(b"key 1", b"1")
            async with failing(stage, "prefix"):
                await other.feed("orders").put(b"other", b"1")
            async with failing(stage, "role"):
                await other.create_token("mine", role="read")
        await client.revoke_token("writer")
        stage.tell("left", [info.name for info in await client.tokens()])


async def progress(stage):
    """What a query of Spark tells of itself."""
    async with stage.client(name="spark revenue") as client:
        feed = await client.create_feed("orders", partitions=2)
        await feed.write([tailrace.Put(b"%d" % number, b"1") for number in range(4)])
        feed_id = (await feed.resolve()).feed_id
        told = Progress(feed_id, Level.DISK, {0: 1, 1: 2})
        stage.tell("progress", await client.call(Opcode.PROGRESS, told.to_json()))


async def consumers(stage):
    """A consumer with a name: it commits, goes on, and loses its name to another program."""
    async with stage.client(name="consumers") as client:
        orders = await client.create_feed("orders", partitions=2)
        await orders.write([tailrace.Put(b"key %d" % number, b"%d" % number) for number in range(10)])
        async with orders.consume(until="now", name="reader") as stream:
            stage.tell("read", await read(stream))
            await stream.commit()
            given = stream.latest_positions
        await orders.put(b"later", b"1")
        async with orders.consume(name="reader") as before:
            async for event in before:
                if isinstance(event, tailrace.Mutations):
                    stage.tell("later", rows_told(event))
                    break
            async with orders.consume(given, name="reader", partitions=[0, 1]), failing(stage, "taken"):
                await before.commit()
        async with orders.consume(given, name="given"):
            named = {"feed_id": (await orders.resolve()).feed_id.hex(), "kind": "name", "name": "given"}
            found = await client.call(Opcode.CONSUMER_STATUS, named)
            stage.tell("owned", [[each["partition"], each["seq"], each["state"]] for each in found["owned"]])
            async with failing(stage, "in use"):
                await client.call(
                    Opcode.CONSUMER_RESET, {**named, "to": "beginning", "partitions": [0, 1], "positions": ""}
                )
        feed_id = (await orders.resolve()).feed_id
        member = {"feed_id": feed_id.hex(), "kind": "group", "name": "others", "member": "31" * 16}
        async with failing(stage, "no member"):
            await client.call(Opcode.CONSUMER_RENEW, member)
        stage.tell("released", await client.call(Opcode.CONSUMER_RELEASE, {**member, "leave": True}))
        asked = {"feed_id": feed_id.hex(), "kind": "name", "name": "reader", "member": "30" * 16, "since": "now"}
        async with failing(stage, "not owned"):
            await client.call(Opcode.CONSUMER_JOIN, {**asked, "held": {"0": 99}})


SESSIONS = {each.__name__: each for each in (writes, streams, segments, stages, tokens, progress, consumers)}
