"""What each token may ask. Each opcode is asked by tokens that lack its role, its feed or its keys."""

import pytest
from tests.tailrace_server.raw_requests import KEY, PARTITION, block_of, write
from tests.tailrace_server.serving.secured import ask

import tailrace
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.wire.consumer_messages import Commit, ConsumerId, Hold, Join, Reset
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Get, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.progress import Progress
from tailrace.wire.replica_messages import Replica
from tailrace.wire.segment_messages import CheckpointRequest
from tailrace.wire.stage_messages import Publish, StageBlock, StageSeal
from tailrace.wire.stream_messages import StreamRequest
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.serving import access, stage_requests
from tailrace_server.serving.access import PERMITTED, RULES, Subject
from tailrace_server.serving.handlers import HANDLERS

ID = bytes(range(16))
MANY = 100


def test_every_request_has_a_rule():
    assert RULES.keys() == HANDLERS.keys()


def test_a_role_has_no_more_than_the_table_says():
    written = PERMITTED["write"] - PERMITTED["read"]
    assert written == {Opcode.WRITE, Opcode.STAGE_BLOCK, Opcode.STAGE_SEAL, Opcode.PUBLISH}
    assert PERMITTED["read"] < PERMITTED["write"] < PERMITTED["admin"]
    between_nodes = {Opcode.PROMISE, Opcode.TAKE_OVER, Opcode.REPLICA_ACK, Opcode.LEADER_CONFIRM, Opcode.STAGE_COPIES}
    assert between_nodes <= PERMITTED["replica"]
    assert not between_nodes & PERMITTED["admin"]
    assert not PERMITTED["replica"] & {Opcode.WRITE, Opcode.CREATE_TOKEN, Opcode.HANDOVER, Opcode.MEMBER_CHANGE}


async def answer_to(connection, opcode, body):
    await connection.send(encode_frame(opcode, bytes(body), 5))
    frame = await connection.receive()
    return decode_error(frame.body) if frame.opcode is Opcode.ERROR else frame


@pytest.mark.parametrize("role", ["read", "write", "admin", "replica"])
async def test_what_a_role_lacks_is_refused_by_its_name(secured, role):
    token = await secured.token("shop", role)
    async with secured.raw(token) as connection:
        for opcode in sorted(RULES.keys() - PERMITTED[role]):
            error = await answer_to(connection, opcode, b"")
            assert type(error) is tailrace.Forbidden, opcode
            assert f"token 'shop' (role {role}) may not send {opcode.name}" in str(error)


def stream_request(feed_id, partition=PARTITION, **options):
    return StreamRequest(feed_id, partition, FailoverLog(), 0, 0, 0, 0, None, Level.DISK, **options)


def checked_requests(feed_id, name):
    """A request of each opcode that is about a feed or its keys, by the opcode."""
    block = block_of(KEY)
    return {
        Opcode.PARTITIONS: {"name": name},
        Opcode.EXPLAIN_RESUME: stream_request(feed_id).to_json(),
        Opcode.STREAM_REQUEST: stream_request(feed_id).to_json(),
        Opcode.SEGMENT_CHECKPOINT: CheckpointRequest(feed_id, 0).to_json(),
        Opcode.PROGRESS: Progress(feed_id, Level.DISK, {PARTITION: 0}).to_json(),
        Opcode.CONSUMER_JOIN: Join(ConsumerId(feed_id, "name", "reader"), ID).encode(5),
        Opcode.CONSUMER_COMMIT: Commit(
            ConsumerId(feed_id, "name", "reader"),
            ID,
            {0: 1},
            Positions(ID, feed_id, {0: Position.at(FailoverLog(), 0)}),
        ).encode(5),
        Opcode.CONSUMER_RENEW: Hold(ConsumerId(feed_id, "group", "g"), ID).encode(Opcode.CONSUMER_RENEW, 5),
        Opcode.CONSUMER_RELEASE: Hold(ConsumerId(feed_id, "group", "g"), ID).encode(Opcode.CONSUMER_RELEASE, 5),
        Opcode.CONSUMER_STATUS: ConsumerId(feed_id, "group", "g").to_json(),
        Opcode.CONSUMER_RESET: Reset(ConsumerId(feed_id, "group", "g"), "now", (0,)).to_json(),
        Opcode.PUBLISH: Publish(feed_id, "sink", "origin", 1, (ID,), (PARTITION,), 0).to_json(),
        Opcode.GET: Get(feed_id, Level.DISK, [KEY]).encode(5),
        Opcode.WRITE: encode_frame(Opcode.WRITE, write(feed_id, block), 5),
        Opcode.STAGE_BLOCK: b"".join(map(bytes, StageBlock.encode(feed_id, ID, 0, 0, block, 5))),
        Opcode.STAGE_SEAL: StageSeal(feed_id, ID, 0, 0, 0).encode(5),
    }


async def ask_each(connection, feed_id, name):
    for opcode, request in checked_requests(feed_id, name).items():
        if isinstance(request, dict):
            yield opcode, await ask(connection, opcode, request)
        else:
            await connection.send(request)
            frame = await connection.receive()
            yield opcode, decode_error(frame.body) if frame.opcode is Opcode.ERROR else frame


def test_each_request_about_a_feed_is_asked_here():
    about = {opcode for opcode, rule in RULES.items() if rule.subject in (Subject.FEED, Subject.KEYS)}
    assert checked_requests(ID, "orders").keys() == about


async def feed_id_of(secured, name):
    async with secured.connect(secured.admin) as client:
        return (await client.feed(name).resolve()).feed_id


async def test_a_token_of_another_feed_is_refused(secured):
    token = await secured.token("shop", "write", feeds=["orders"])
    async with secured.raw(token) as connection:
        feed_id = await feed_id_of(secured, "payments")
        async for opcode, error in ask_each(connection, feed_id, "payments"):
            assert type(error) is tailrace.Forbidden, (opcode, error)
            # The name is told only to those who have said it.
            named = "'payments'" if opcode is Opcode.PARTITIONS else feed_id.hex()
            assert f"token 'shop' (role write; feeds orders) may not use feed {named}: " in str(error)


async def test_the_list_of_feeds_is_for_nodes_and_operators(secured):
    token = await secured.token("shop", "write")
    async with secured.raw(token) as connection:
        async for opcode, error in ask_each(connection, SYSTEM_FEED_ID, "_feeds"):
            assert type(error) is tailrace.Forbidden, (opcode, error)
            assert "may not use _feeds" in str(error), opcode


async def test_a_token_of_other_keys_is_refused(secured):
    token = await secured.token("shop", "write", key_prefix=b"eu/")
    asked = {opcode for opcode, rule in RULES.items() if rule.subject is Subject.KEYS}
    async with secured.raw(token) as connection:
        async for opcode, error in ask_each(connection, await feed_id_of(secured, "orders"), "orders"):
            if opcode in asked:
                assert type(error) is tailrace.Forbidden, (opcode, error)
                assert "key prefix b'eu/'" in str(error), opcode


async def test_a_writer_of_a_prefix_publishes_only_as_its_own_sinks(secured):
    """Under another sink's name it could take the numbers of that sink's next batches."""
    token = await secured.token("eu", "write", key_prefix=b"eu/")
    async with secured.connect(token) as client:
        feed = client.feed("orders")
        async with feed.stage() as stage:
            await stage.put(b"eu/1", b"v")
            sealed = await stage.seal()
        for sink in ("orders", "us/orders", "job:1", "job:us/1", "job:job:eu/1", "eu"):
            with pytest.raises(tailrace.Forbidden, match="a sink whose name begins with its key prefix"):
                await feed.publish(sink, 2**62, [sealed])
        assert (await feed.publish("job:eu/1", 0, [sealed])).written
        await feed.publish("eu/orders", 0, [])
    async with secured.connect(secured.admin) as client:
        await client.feed("orders").publish("orders", 0, [])


async def test_a_writer_of_a_prefix_uses_few_sinks(secured, monkeypatch):
    """A partition remembers 1,000 of them: those of others must not be forgotten for its sake."""
    monkeypatch.setattr(stage_requests, "SINKS_OF_PREFIX_MAX", 2)
    token = await secured.token("eu", "write", key_prefix=b"eu/")

    async def publish(client, sink, batch):
        feed = client.feed("orders")
        async with feed.stage() as stage:
            await stage.put(b"eu/1", b"v")
            return await feed.publish(sink, batch, [await stage.seal()])

    async with secured.connect(token) as client, secured.connect(secured.admin) as admin:
        for sink in ("us/1", "us/2", "eu/1", "eu/2"):
            await publish(admin if sink.startswith("us") else client, sink, 0)
        with pytest.raises(
            tailrace.Forbidden, match="2 sinks have published with key prefix b'eu/', and 'eu/3' is none"
        ):
            await publish(client, "eu/3", 0)
        assert (await publish(client, "eu/1", 1)).written
        assert (await publish(client, "job:eu/3", 0)).written
        assert (await publish(admin, "eu/3", 0)).written


@pytest.mark.parametrize("rows", [1, 2, MANY])
async def test_a_writer_of_another_prefix(secured, rows):
    token = await secured.token("eu", "write", key_prefix=b"eu/")
    async with secured.connect(token) as client:
        feed = client.feed("payments")
        await feed.write([tailrace.Put(b"eu/%d" % row, b"v") for row in range(rows)])
        changes = [tailrace.Put(b"eu/%d" % row, b"w") for row in range(rows)]
        with pytest.raises(tailrace.Forbidden, match="keys that begin with its prefix"):
            await feed.write([*changes[1:], tailrace.Put(b"us/0", b"w")])
        with pytest.raises(tailrace.Forbidden):
            await feed.delete(b"us/0")


async def test_a_reader_of_a_prefix(secured):
    async with secured.connect(secured.admin) as client:
        await client.feed("orders").write([tailrace.Put(b"eu/1", b"v"), tailrace.Put(b"us/1", b"v")])
    token = await secured.token("eu", "read", key_prefix=b"eu/")
    async with secured.connect(token) as client:
        feed = client.feed("orders")
        assert (await feed.get(b"eu/1")).value == b"v"
        with pytest.raises(tailrace.Forbidden):
            await feed.get(b"us/1")
        with pytest.raises(tailrace.Forbidden):
            await feed.get_many([b"eu/1", b"us/1"])
        assert [item.key async for item in feed.items(key_prefix=b"eu/")] == [b"eu/1"]
        with pytest.raises(tailrace.Forbidden, match="ask for b'eu/'"):
            await anext(aiter(feed.items()))


async def test_a_list_of_feeds_shows_only_those_of_the_token(secured):
    token = await secured.token("shop", "read", feeds=["orders"])
    async with secured.connect(token) as client:
        assert [info.name for info in await client.feeds()] == ["orders"]
        details = (await client.status()).details
    assert [feed["name"] for feed in details["feeds"]] == ["orders"]
    assert details["connections"] == []


async def test_a_feed_that_is_made_later_counts(secured):
    token = await secured.token("shop", "write", feeds=["later"])
    async with secured.connect(secured.admin) as admin:
        await admin.create_feed("later", partitions=1)
    async with secured.connect(token) as client:
        await client.feed("later").put(b"k", b"v")


async def test_a_replica_that_is_none(secured):
    replica = Replica(ID, 1, "127.0.0.1:1", True, ID)
    feed_id = await feed_id_of(secured, "orders")
    for role in ("read", "write", "admin"):
        token = await secured.token(role, role) if role != "admin" else secured.admin
        async with secured.raw(token) as connection:
            error = await ask(connection, Opcode.STREAM_REQUEST, stream_request(feed_id, replica=replica).to_json())
            assert type(error) is tailrace.Forbidden
            assert "role replica is needed" in str(error)


async def test_a_client_does_not_get_the_places_of_nodes_by_saying_so(secured):
    token = await secured.token("shop", "read")
    async with secured.raw(token, of_node=True):
        connections = secured.running.node.connections
        [connection] = connections
        assert connection in connections._clients


@pytest.mark.parametrize(
    "name", ["../orders", "a/b", "..", ".", "/etc", ".hidden", "a\0b", "_feeds", "-f", "%2e%2e", "", "a\n"]
)
async def test_a_feed_is_not_named_like_a_path(secured, name):
    feed_id = ID.hex()
    async with secured.raw(secured.admin) as connection:
        error = await ask(connection, Opcode.CREATE_FEED, {"name": name, "feed_id": feed_id})
        assert isinstance(error, tailrace.TailraceError)
        assert "cannot be the name of a feed" in str(error)
        value = {"name": "t", "role": "read", "feeds": [name], "token_id": "0" * 16, "secret_hash": "0" * 64}
        error = await ask(connection, Opcode.CREATE_TOKEN, value)
        assert "cannot be the name of a feed" in str(error)


@pytest.mark.parametrize("name", ["../t", "a/b", "", "T", "a\n", "t" * 101])
async def test_a_token_is_not_named_like_a_path(secured, name):
    value = {"name": name, "role": "read", "token_id": "0" * 16, "secret_hash": "0" * 64}
    async with secured.raw(secured.admin) as connection:
        assert "cannot be the name of a token" in str(await ask(connection, Opcode.CREATE_TOKEN, value))


async def test_positions_give_no_rights(secured):
    """Positions of a reader of one feed, and forged ones, open no stream of another feed, and none with other keys."""
    payments, token = await feed_id_of(secured, "payments"), await secured.token("shop", "read", feeds=["orders"])
    log = FailoverLog.from_json([[ID.hex(), 1, 0]])
    async with secured.raw(token) as connection:
        for seq in (0, 1, 2**62):
            positions = {"log": log, "seq": seq, "snapshot_first": seq, "snapshot_last": seq}
            forged = stream_request(payments)._replace(**positions).to_json()
            assert type(await ask(connection, Opcode.STREAM_REQUEST, forged)) is tailrace.Forbidden


async def test_what_a_connection_knows_of_feeds_is_bounded_and_forgets_none_that_is_forbidden(secured, monkeypatch):
    monkeypatch.setattr(access, "KNOWN_FEEDS_MAX", 2)
    token = await secured.token("shop", "write", feeds=["orders"])
    async with secured.connect(secured.admin) as admin, secured.connect(token) as client:
        for number in range(5):
            await client.feed("orders").put(b"%d" % number, b"v")
            [shop] = [each.access for each in secured.running.node.connections if each.access.principal.name == "shop"]
            assert len(shop._known) <= 2
            with pytest.raises(tailrace.Forbidden):
                await client.feed("payments").put(b"k", b"v")
            await admin.drop_feed("orders")
            await admin.create_feed("orders", partitions=1)
