"""Clients of several nodes, of which one leads: a real node, and others that are made by hand, over TCP."""

import asyncio

import pytest
import trio

import tailrace
from tailrace import blocking
from tailrace.consuming.events import Mutations
from tailrace.consuming.subscription import Subscription
from tailrace.errors import Forbidden, NotLeader, Unreachable, VersionLost
from tailrace.link.address import Address
from tailrace.link.finder import Finder
from tailrace.model import EndReason
from tailrace.testing.ports import free_port
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import HelloOk, Write, WriteFlag, encode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamEnd
from tailrace_server.serving.status import partition_map


class Signpost:
    """A node that leads nowhere: it says hello, and to everything else where it believes the leader to be."""

    def __init__(self, **hello):
        self.hello = HelloOk(1, "0" * 32, "0" * 32, "", 1 << 25, 10.0, ("memory", "disk"))._replace(**hello)
        self.says = hello.get("leader", "")
        self.greeted = 0
        self.asked = []
        self.address = None
        self.on_hello = lambda: None

    @property
    def url(self):
        return f"tailrace://{self.address}"

    async def handle(self, stream):
        decoder = FrameDecoder()
        try:
            async for data in stream:
                for frame in decoder.receive_data(bytes(data)):
                    await stream.send_all(self.answer(frame))
        except trio.BrokenResourceError:
            pass  # the client has gone where it was told to

    def answer(self, frame):
        if frame.opcode is Opcode.HELLO:
            self.greeted += 1
            self.on_hello()
            return self.hello.encode()
        if frame.opcode is Opcode.NOOP:
            return b""
        self.asked.append((frame.opcode, bytes(frame.body)))
        return encode_error(NotLeader("not here", leader=self.says or None), frame.id)

    def points_to(self, address):
        self.says = str(address)
        self.hello = self.hello._replace(leader=str(address))


class Lacking(Signpost):
    """A node that leads, and has none of the partitions of a feed."""

    feed_id = bytes(16)

    def answer(self, frame):
        match frame.opcode:
            case Opcode.PARTITIONS:
                value = {"feed": {"feed_id": self.feed_id.hex()}, "partitions": [{"id": 0, "high_seq": 0}]}
                return encode_json(Opcode.RESULT, value, frame.id)
            case Opcode.STREAM_REQUEST:
                self.asked.append((frame.opcode, bytes(frame.body)))
                return StreamEnd(0, EndReason.NOT_MY_PARTITION, "not here").encode(frame.id)
            case Opcode.HELLO | Opcode.NOOP:
                return super().answer(frame)
        return b""


@pytest.fixture
async def put_up(nursery):
    async def begin(kind=Signpost, **hello):
        post = kind(**hello)
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        post.address = Address(*listener.socket.getsockname())
        nursery.start_soon(trio.serve_listeners, post.handle, [listener])
        return post

    return begin


@pytest.fixture
def leader(running):
    return Address(*running.config.listen)


def closed_address():
    return Address("127.0.0.1", free_port())


async def test_a_client_goes_where_a_follower_points(put_up, leader):
    post = await put_up(role="follower", leader=str(leader))
    async with tailrace.connect(post.url) as client:
        feed = await client.create_feed("orders", partitions=2)
        version = await feed.put(b"k", b"v")
        assert (await feed.get(b"k", at_least=version)).value == b"v"
        async with feed.consume(until="now") as stream:
            rows = [row.key async for event in stream if isinstance(event, Mutations) for row in event]
        assert rows == [b"k"]
    assert post.asked == []
    assert post.greeted == 1, "a stream begins where the client has found the leader"


async def test_among_some_that_are_dead_or_wrong(put_up, leader, monkeypatch):
    monkeypatch.setattr(Finder, "next_look", lambda finder, waits: None)  # it would greet them again in a moment
    first, second = await put_up(role="follower"), await put_up(role="follower")
    first.points_to(second.address)
    second.points_to(first.address)
    addresses = [closed_address(), first.address, second.address, closed_address(), leader]
    async with tailrace.connect(f"tailrace://{','.join(map(str, addresses))}") as client:
        assert await client.feeds() == []
    assert (first.greeted, second.greeted) == (1, 1)


@pytest.mark.parametrize("kind", ["trio", "asyncio", "blocking"])
async def test_a_member_whose_promise_came_to_nothing_keeps_no_client_from_the_leader(put_up, leader, client, kind):
    """It is asked first, and has promised a later term than the leader, of its own cluster, leads in."""
    cluster_id = client.cluster_id.hex()
    post = await put_up(role="follower", cluster_id=cluster_id, term=9)
    url = f"tailrace://{post.address},{leader}"

    def ask():
        with blocking.connect(url, connect_timeout=20) as blocked:
            return blocked.feeds()

    async def ask_under_asyncio():
        async with tailrace.asyncio.connect(url, connect_timeout=20) as connected:
            return await connected.feeds()

    if kind == "blocking":
        assert await trio.to_thread.run_sync(ask) == []
    elif kind == "asyncio":
        assert await trio.to_thread.run_sync(lambda: asyncio.run(ask_under_asyncio(), debug=True)) == []
    else:
        async with tailrace.connect(url, connect_timeout=20) as connected:
            assert await connected.feeds() == []
    assert post.greeted >= 1


async def test_a_leader_that_turns_up_later(put_up, leader):
    post = await put_up(role="follower")
    post.on_hello = lambda: post.points_to(leader) if post.greeted == 4 else None
    async with tailrace.connect(post.url) as client:
        assert await client.feeds() == []
    assert post.greeted == 4


async def test_a_write_that_a_leader_refuses_as_it_steps_down_goes_to_its_successor(put_up, leader, feed):
    post = await put_up(role="leader")
    async with tailrace.connect(post.url) as client:
        client._core.lanes.clear()
        handle = client.feed(feed.name)
        handle._core.resolved = await feed.resolve()
        post.points_to(leader)
        version = await handle.put(b"k", b"v")
    [(opcode, body)] = post.asked
    assert opcode is Opcode.WRITE
    assert not Write.decode(memoryview(body)).flags & WriteFlag.RESEND
    assert (await feed.get(b"k")).version == version


async def test_a_stream_that_loses_its_leader_finds_the_next_one(put_up, leader, feed):
    await feed.put(b"k", b"v")
    post = await put_up(role="leader", cluster_id=feed._runner.core.cluster_id.hex())
    async with tailrace.connect(post.url) as client:
        post.points_to(leader)
        async with client.feed(feed.name).consume(until="now") as stream:
            rows = [row.key async for event in stream if isinstance(event, Mutations) for row in event]
    assert rows == [b"k"]


@pytest.fixture
async def one_row(client):
    """A feed of one partition, and a row."""
    feed = await client.create_feed("one_row", partitions=1)
    await feed.put(b"k", b"v")
    return feed


@pytest.fixture
async def lacking(put_up, running, one_row):
    """Says that it leads in the real leader's term: so no look at that one tells which of the two to leave."""
    term = running.node.leaderships.system.term
    post = await put_up(Lacking, cluster_id=one_row._runner.core.cluster_id.hex(), term=term)
    post.feed_id = (await one_row.resolve()).feed_id
    return post


async def test_a_stream_of_a_partition_that_a_node_does_not_have_goes_to_another_node(lacking, leader, one_row):
    url = f"tailrace://{lacking.address},{leader}"
    async with tailrace.connect(url) as client, client.feed(one_row.name).consume() as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                break
    assert [row.key for row in event] == [b"k"]
    assert len(lacking.asked) == 3


async def test_a_stream_without_async_goes_to_another_node_likewise(lacking, leader, one_row):
    def work():
        url = f"tailrace://{lacking.address},{leader}"
        with blocking.connect(url) as client, client.stream(Subscription(one_row.name)) as stream:
            return next(row.key for event in stream if isinstance(event, Mutations) for row in event)

    assert await trio.to_thread.run_sync(work) == b"k"
    assert len(lacking.asked) == 3


@pytest.mark.slow
async def test_nobody_leads(put_up):
    post = await put_up(role="follower")
    with pytest.raises(Unreachable, match="does not lead"):
        async with tailrace.connect(post.url, connect_timeout=3):
            pass
    assert post.greeted >= 2


async def test_a_follower_is_asked_for(put_up, leader):
    post = await put_up(role="follower", leader=str(leader))
    async with tailrace.connect(f"tailrace://{leader},{post.address}", state="follower", retry_for=1.0) as client:
        with pytest.raises(NotLeader):
            await client.create_feed("orders")
    assert len(post.asked) > 1
    with pytest.raises(Unreachable, match="asks for one that follows"):
        async with tailrace.connect(f"tailrace://{leader}", state="follower", connect_timeout=3):
            pass


async def test_any_node_will_do_for_its_status(put_up, leader):
    post = await put_up(role="follower", leader=str(leader))
    async with tailrace.connect(post.url, state="any", retry_for=1.0) as client:
        with pytest.raises(NotLeader):
            await client.status()
    assert Opcode.STATUS in dict(post.asked)


async def test_a_state_that_there_is_none(running):
    with pytest.raises(ValueError, match="none of 'leader', 'follower', 'any'"):
        tailrace.connect(running.url, state="primary")
    with pytest.raises(ValueError, match="none of"):
        blocking.connect(running.url, state="primary")


async def test_without_async(put_up, leader, feed):
    post = await put_up(role="leader")
    post.points_to(leader)
    follower = await put_up(role="follower", leader=str(post.address))

    def work():
        with blocking.connect(follower.url) as client:
            handle = client.feed(feed.name)
            version = handle.put(b"k", b"v")
            return handle.get(b"k", at_least=version).value

    assert await trio.to_thread.run_sync(work) == b"v"
    assert follower.greeted == 1


class Behind(Signpost):
    """A node that follows, and of whose history a deposed leader's branch is the newest for the first few questions.

    A get says that it has come.
    """

    def __init__(self, **hello):
        super().__init__(**hello)
        self.node = self.branch = None
        self.stale = 3

    def answer(self, frame):
        match frame.opcode:
            case Opcode.PARTITIONS:
                value = partition_map(self.node, self.node.feeds.named("orders"))
                if self.stale:
                    self.stale -= 1
                    for partition in value["partitions"]:
                        partition["log"] = [["ab" * 16, 9, partition["log"][0][2] + 1], *partition["log"]]
                return encode_json(Opcode.RESULT, value, frame.id)
            case Opcode.GET:
                return encode_error(Forbidden("the get has come"), frame.id)
        return super().answer(frame)


def get_blocking(url, version):
    with blocking.connect(url, state="follower", retry_for=20.0) as client:
        client.feed("orders").get(b"k", at_least=version)


async def get(url, version, is_async=True, retry_for=20.0):
    if not is_async:
        await trio.to_thread.run_sync(get_blocking, url, version)
        return
    async with tailrace.connect(url, state="follower", retry_for=retry_for, connect_timeout=3) as client:
        await client.feed("orders").get(b"k", at_least=version)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_follower_that_is_behind_in_history_does_not_tell_that_a_version_is_lost(
    put_up, leader, running, feed, is_async
):
    await feed.put(b"k", b"before")
    version = await feed.put(b"k", b"v")
    post = await put_up(Behind, role="follower", leader=str(leader))
    post.node = running.node
    with pytest.raises(Forbidden, match="the get has come"):
        await get(post.url, version, is_async)
    assert post.stale == 0, "it was asked again until it had come to the version"


class CutOff(Behind):
    """A node that follows, and comes no further than it was at the start of its history."""

    def answer(self, frame):
        if frame.opcode is not Opcode.PARTITIONS:
            return super().answer(frame)
        value = partition_map(self.node, self.node.feeds.named("orders"))
        for partition in value["partitions"]:
            partition["high_seq"] = 0
        return encode_json(Opcode.RESULT, value, frame.id)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_node_that_is_cut_off_is_left_for_one_that_has_come_to_a_version(
    put_up, leader, running, feed, is_async
):
    version = await feed.put(b"k", b"v")
    post = await put_up(CutOff, role="follower", leader=str(leader))
    post.node = running.node
    url = f"{post.url},{leader}"

    def work():
        with blocking.connect(url, state="any") as client:
            return client.feed("orders").get(b"k", at_least=version).value

    if is_async:
        async with tailrace.connect(url, state="any") as client:
            assert (await client.feed("orders").get(b"k", at_least=version)).value == b"v"
    else:
        assert await trio.to_thread.run_sync(work) == b"v"
    assert post.greeted == 1, "it was asked first"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_version_that_the_leader_does_not_have_is_lost(put_up, leader, running, feed, lose, is_async):
    await feed.put(b"k", b"kept")
    async with lose():
        version = await feed.put(b"k", b"lost", level="memory")
    await feed.put(b"k", b"after")
    post = await put_up(Behind, role="follower", leader=str(leader))
    post.node = running.node
    with pytest.raises(VersionLost):
        await get(post.url, version, is_async)


async def test_without_a_leader_nothing_is_told_to_be_lost(put_up, running, feed):
    await feed.put(b"k", b"before")
    version = await feed.put(b"k", b"v")
    post = await put_up(Behind, role="follower", leader=str(closed_address()))
    post.node, post.stale = running.node, 1_000
    with pytest.raises(Unreachable):
        await get(post.url, version, retry_for=1.0)
