"""Connections that are idle, silent or half dead: both sides notice, and neither tears down what lives."""

import dataclasses
import socket
from contextlib import asynccontextmanager

import pytest
import trio

import tailrace
from tailrace.errors import ProtocolError
from tailrace.link.finder import LOOK_IDLE_SECONDS
from tailrace.link.rules import SLOW_TICK_SECONDS, TICK_SECONDS, Silence, tick_seconds
from tailrace.model import Level
from tailrace.trio.client import Client
from tailrace.trio.host import Host
from tailrace.trio.link import RequestLink
from tailrace.trio.tcp import connect_tcp
from tailrace.wire.messages import Get
from tailrace_server.serving import connection as connection_module

# Three of them in silence end a connection: more than a busy machine lets this process wait at once.
NOOP_SECONDS = 0.3


@pytest.fixture
def node_config(node_config):
    """Noops so often that a few intervals pass during a test."""
    limits = dataclasses.replace(node_config.limits, noop_interval_s=NOOP_SECONDS, hello_timeout_s=2 * NOOP_SECONDS)
    return dataclasses.replace(node_config, limits=limits)


def test_silence_begins_at_the_last_look_that_found_something_new():
    silence = Silence(10.0)
    assert silence.seconds(0, 12.0) == 2.0
    assert silence.seconds(3, 13.0) == 0.0
    assert silence.seconds(3, 14.5) == 1.5
    assert silence.seconds(4, 15.0) == 0.0
    assert silence.seconds(4, 17.0) == 2.0
    assert silence.seconds(4, 90.0, listened=False) == 2.0, "no task has listened"
    assert silence.seconds(4, 91.0) == 3.0


class Held:
    """A session with a request whose deadline is far away; it notes when it is looked at."""

    idle = is_holding = gathers = False
    is_open = True
    until_deadline_s = 30.0

    def __init__(self):
        self.looks = []

    def data_to_send(self, now=None):
        return []

    def expire(self):
        self.looks.append(round(trio.current_time() - self.begin, 3))


async def test_a_request_that_is_held_is_looked_at_more_often(nursery, autojump_clock):
    session = Held()
    session.begin = trio.current_time()
    link = RequestLink(session, core=None)
    nursery.start_soon(link.tick)
    await trio.sleep(2.1 * SLOW_TICK_SECONDS)
    assert session.looks == [SLOW_TICK_SECONDS, 2 * SLOW_TICK_SECONDS]
    session.looks.clear()
    session.begin = trio.current_time()
    session.is_holding = True
    link._answered()
    await trio.sleep(2.5 * TICK_SECONDS)
    assert session.looks == [0.0, TICK_SECONDS, 2 * TICK_SECONDS]


class Watched:
    """A core that notes when it is asked for a node to look at."""

    def __init__(self):
        self.asked = []
        self.begin = trio.current_time()

    def looks(self):
        while True:
            self.asked.append(round(trio.current_time() - self.begin, 3))
            yield None

    def is_superseded(self):
        return False


async def test_a_client_wakes_up_once_for_its_requests_and_for_a_later_leader(nursery, autojump_clock):
    session, core = Held(), Watched()
    session.begin = core.begin
    link = RequestLink(session, core)
    nursery.start_soon(link.look)
    nursery.start_soon(link.tick)
    await trio.sleep(2.1 * SLOW_TICK_SECONDS)
    assert core.asked == [0.0, *session.looks]


async def test_a_client_without_a_request_looks_rarely_until_it_has_one(nursery, autojump_clock):
    session, core = Held(), Watched()
    session.begin, session.idle = core.begin, True
    link = RequestLink(session, core)
    nursery.start_soon(link.look)
    nursery.start_soon(link.tick)
    await trio.sleep(2.5 * LOOK_IDLE_SECONDS)
    assert core.asked == [0.0, LOOK_IDLE_SECONDS, 2 * LOOK_IDLE_SECONDS]
    session.idle = False
    link.kick()
    await trio.sleep(1.1 * SLOW_TICK_SECONDS)
    assert core.asked[3:] == [2.5 * LOOK_IDLE_SECONDS + SLOW_TICK_SECONDS]


@pytest.mark.parametrize(("left", "pause"), [(0.0, 0.05), (0.3, 0.075), (30.0, 0.25), (float("inf"), 0.25)])
def test_checks_are_rare_while_deadlines_are_far_away(left, pause):
    assert tick_seconds(left) == pause


async def several_intervals():
    await trio.sleep(5 * NOOP_SECONDS)


async def test_an_idle_client_stays_connected(client, node):
    (before,) = node.connections
    await several_intervals()
    assert list(node.connections) == [before]
    assert await client.feeds() == []


async def test_an_idle_stream_stays_connected(feed, node):
    async with feed.consume() as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.__anext__)
        before = set(node.connections)
        assert len(before) == 2
        await several_intervals()
        assert set(node.connections) == before
        await feed.put(b"k", b"v")


async def test_a_stream_that_nobody_reads_stays_connected(feed, node):
    async with feed.consume(window_bytes=1):
        for number in range(5):
            await feed.put(b"%d" % number, bytes(1000))
        before = set(node.connections)
        await several_intervals()
        assert set(node.connections) == before


async def test_a_client_that_says_nothing_is_dropped(raw):
    async with raw() as connection:
        await connection.hello()
        error = await connection.error()
        assert isinstance(error, ProtocolError)
        assert "nothing heard for" in str(error)
        assert await connection.is_closed()


async def test_who_never_says_hello_is_dropped(raw):
    async with raw() as connection:
        error = await connection.error()
        assert "no HELLO within" in str(error)
        assert await connection.is_closed()


class Muted:
    """A way to connect whose first connections fall silent on command: a node that hangs, or a cable that is cut."""

    def __init__(self):
        self.transports = []
        self.muted = False

    async def connect(self, address):
        transport = await connect_tcp(address)
        self.transports.append(transport)
        if len(self.transports) == 1:
            transport.receive = self.mute(transport.receive)
            transport.receive_each = self.mute_each(transport.receive_each)
        return transport

    def mute(self, receive):
        async def muted():
            data = await receive()
            while self.muted and data:
                data = await receive()
            return data

        return muted

    def mute_each(self, receive_each):
        async def muted(take):
            return await receive_each(lambda data: self.muted or take(data))

        return muted


async def test_a_node_that_says_nothing_is_left(running):
    """The request goes to another connection as soon as the silence is noticed, and not after its time is up."""
    network = Muted()
    async with Client(running.url, host=Host(connect=network.connect)) as client:
        feed = await client.create_feed("orders", partitions=2)
        await feed.put(b"k", b"1")
        network.muted = True
        version = await feed.put(b"k", b"2")
        assert len(network.transports) == 2
        assert version.seq == 2, "it was sent twice, and written once"
        assert (await feed.get(b"k")).value == b"2"


@asynccontextmanager
async def consuming(url, network):
    """A stream whose connections go through ``network``, and those of its client do not."""
    connects = 0

    async def connect(address):
        nonlocal connects
        connects += 1
        # The first connection is the client's own.
        return await (connect_tcp(address) if connects == 1 else network.connect(address))

    async with Client(url, host=Host(connect=connect)) as client, client.feed("orders").consume() as stream:
        yield stream


async def test_a_stream_leaves_a_node_that_says_nothing(running, feed):
    network, seqs = Muted(), []
    await feed.put(b"k", b"1")
    async with consuming(running.url, network) as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                seqs += event.seqs()
                if len(seqs) == 1:
                    network.muted = True
                    await feed.put(b"k", b"2")
                else:
                    break
    assert seqs == [1, 2]
    assert len(network.transports) == 2


async def test_a_stream_that_is_polled_leaves_a_node_that_says_nothing(running, feed):
    """Many short reads that bring nothing are as good as a long one."""
    network, seqs = Muted(), []
    await feed.put(b"k", b"1")
    async with consuming(running.url, network) as stream:
        for _ in range(1_000):
            with trio.move_on_after(NOOP_SECONDS / 10):
                event = await stream.__anext__()
                if isinstance(event, tailrace.Mutations):
                    seqs += event.seqs()
                    network.muted = True
                    await feed.put(b"k", b"2")
            if seqs == [1, 2]:
                break
    assert seqs == [1, 2]
    assert len(network.transports) == 2


async def test_a_stream_that_is_polled_stays_connected(feed, node):
    async with feed.consume() as stream:
        before = set(node.connections)
        for _ in range(50):
            with trio.move_on_after(NOOP_SECONDS / 10):
                await stream.__anext__()
        assert set(node.connections) == before


async def test_a_peer_that_asks_and_does_not_read_holds_little(raw, feed, node, monkeypatch):
    """Its requests wait until it has taken the answers; after a while it is dropped."""
    monkeypatch.setattr(connection_module, "LINGER_SECONDS", 0.0)
    value = bytes(1 << 20)
    await feed.put(b"k", value)
    feed_id = (await feed.resolve()).feed_id
    limit = node.config.limits.backlog_bytes_max
    async with raw() as connection:
        await connection.hello()
        port = connection.stream.socket.getsockname()[1]
        (held,) = [c for c in node.connections if c.transport.peer == f"127.0.0.1:{port}"]
        await connection.send(*(Get(feed_id, Level.DISK, [b"k"]).encode(id) for id in range(1, 200)))
        largest = 0
        while held in node.connections:
            largest = max(largest, held.answers.held_bytes + held.transport.backlog_bytes)
            await trio.sleep(0.005)
        assert limit <= largest <= limit + 2 * len(value)
    assert (await feed.get(b"k")).value == value


async def test_a_first_address_that_is_dead_leaves_time_for_the_second(running):
    """It accepts, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as dead:
        url = running.url.replace("tailrace://", f"tailrace://127.0.0.1:{dead.getsockname()[1]},")
        async with tailrace.connect(url, connect_timeout=6) as client:
            assert await client.feeds() == []
