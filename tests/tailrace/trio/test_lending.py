"""A lone call reads its answer by itself at a socket that the connection's task lends; nothing else is different."""

from __future__ import annotations

import contextlib
import random
import signal
from typing import NamedTuple
from unittest import mock

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.network import Network
from tests.tailrace.lone_calls import is_lent, rarely_ticks, until_lent
from tests.tiers import examples

import tailrace
from tailrace.block.header import HEADER_BYTES, BlockHeader
from tailrace.trio import lending, ready_sockets
from tailrace.trio.client import Client
from tailrace.trio.host import Host
from tailrace.trio.lending import LONE_CALLS, UNREAD_SECONDS, Lender
from tailrace.trio.ready_sockets import HAS_EPOLL
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import Get, HelloOk, Write, Written, lone_got
from tailrace.wire.opcodes import Opcode

from .test_tcp import Receiving, Taker, pair  # noqa: F401 - pair is a fixture

__all__ = ["rarely_ticks"]

needs_epoll = pytest.mark.skipif(not HAS_EPOLL, reason="a socket is lent out of the set of ready ones")


# The transport


@pytest.fixture
async def lent(pair, nursery):  # noqa: F811
    """The far end, the end that is lent, what it has handed over, and the task that it hands bytes to."""
    left, right = pair
    taker = Taker()
    receiving = Receiving(right, taker, nursery)
    await trio.testing.wait_all_tasks_blocked()
    assert right.lend()
    return left, right, taker, receiving


@needs_epoll
async def test_the_task_that_waits_hands_the_bytes_over(lent):
    left, right, taker, _ = lent
    left.send(b"abc")
    await trio.testing.wait_all_tasks_blocked()
    assert not taker.data, "the other task does not read"
    await right.wait_lent()
    assert right.read_lent()
    assert taker.data == b"abc"
    assert right.read_lent(), "nothing is there"
    right.take_back()
    left.send(b"def")
    assert await taker.has(6) == b"abcdef"
    assert not right.read_lent()


@needs_epoll
@pytest.mark.parametrize("how", ["closed by the peer", "closed here", "a bug"])
async def test_the_end_is_that_of_the_task_that_receives(lent, how, nursery):
    left, right, taker, receiving = lent
    found = []

    async def borrow():
        try:
            await right.wait_lent()
        except trio.ClosedResourceError:
            found.append("closed")
        else:
            found.append(right.read_lent())

    nursery.start_soon(borrow)
    await trio.testing.wait_all_tasks_blocked()
    if how == "closed by the peer":
        left.close()
    elif how == "closed here":
        right.close()
    else:
        taker.data = None
        left.send(b"abc")
    await receiving.ended.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert found == ["closed" if how == "closed here" else False]
    if how == "a bug":
        (error,) = receiving.results
        assert isinstance(error, TypeError)
    else:
        assert receiving.results == [False]
    assert not right.lend()
    right.take_back()
    assert not ready_sockets.ready_sockets()._calls


@needs_epoll
async def test_a_call_that_is_called_back_leaves_the_connection_as_it_was(lent, nursery):
    """What waits to be sent still leaves."""
    left, right, taker, _ = lent
    right.send(bytes(50_000_000))
    assert right.backlog_bytes
    ended = trio.Event()

    async def borrow():
        with pytest.raises(trio.ClosedResourceError):
            await right.wait_lent()
        ended.set()

    nursery.start_soon(borrow)
    await trio.testing.wait_all_tasks_blocked()
    right.recall()
    await ended.wait()
    left.send(b"abc")
    await right.wait_lent()
    assert right.read_lent()
    assert taker.data == b"abc"
    received = 0
    while received < 50_000_000:
        received += len(await left.receive())


@needs_epoll
async def test_a_task_that_leaves_while_its_socket_is_lent_leaves_nothing(lent):
    _, right, _, receiving = lent
    receiving.scope.cancel()
    await receiving.ended.wait()
    assert not right.lend()
    assert not right.read_lent()


# When it is lent


class Lent:
    """A transport that can be lent. ``reads`` are the results of its next reads."""

    def __init__(self):
        self.lending = self
        self.is_lent = False
        self.reads = []

    def lend(self):
        self.is_lent = True
        return True

    def read_lent(self):
        return self.reads.pop(0)

    def take_back(self):
        self.is_lent = False


@given(st.lists(st.sampled_from(["alone", "beside", "given up", "tick", "connection"]), max_size=30))
def test_a_socket_is_lent_after_lone_calls_in_a_row(steps):
    lender, transport, in_a_row, now = Lender(), Lent(), 0, 0.0
    transport.reads = [True] * len(steps)
    lender.connected(transport)
    for step in steps:
        now += 1.0
        if step == "tick":
            lender.take_back_unused()
            assert not transport.is_lent
            continue
        if step == "connection":
            transport = Lent()
            transport.reads = [True] * len(steps)
            lender.connected(transport)
            continue
        borrowed = lender.borrow(now)
        assert (borrowed is not None) == (in_a_row >= LONE_CALLS) == transport.is_lent
        lender.take_back_unused()  # a tick meanwhile leaves it to the call
        assert transport.is_lent == (borrowed is not None)
        if step == "given up":
            lender.take_back()
            in_a_row = 0
        lender.ended(was_alone=step != "beside")
        in_a_row = 0 if step == "beside" else in_a_row + 1
        assert not transport.is_lent or step == "alone"


def test_a_call_after_a_pause_reads_before_it_sends():
    lender, transport = Lender(), Lent()
    lender.connected(transport)
    for _ in range(LONE_CALLS):
        assert lender.borrow(0.0) is None
        lender.ended(was_alone=True)
    assert lender.borrow(0.0) is transport
    lender.ended(was_alone=True)
    assert lender.borrow(UNREAD_SECONDS / 2) is transport, "it does not read so soon"
    lender.ended(was_alone=True)
    transport.reads = [True, False]
    assert lender.borrow(2 * UNREAD_SECONDS) is transport
    lender.ended(was_alone=True)
    assert not lender.has_woken
    assert lender.borrow(3 * UNREAD_SECONDS + 0.001) is None
    assert lender.has_woken


# Calls


@needs_epoll
@pytest.mark.usefixtures("rarely_ticks")
async def test_lone_calls_read_their_answers(client, feed):
    await feed.put(b"k", b"v")
    assert not is_lent(client)
    await until_lent(feed)
    for number in range(3):
        assert (await feed.put(b"k", b"%d" % number)).seq == number + 2
        assert is_lent(client)
        assert (await feed.get(b"k")).value == b"%d" % number


@needs_epoll
@pytest.mark.usefixtures("rarely_ticks")
async def test_calls_beside_each_other_are_read_for_by_the_connection(client, feed):
    await feed.put(b"k", b"v")
    await until_lent(feed)
    assert (await feed.get(b"k")).value == b"v"
    assert is_lent(client)
    values = []

    async def get():
        values.append((await feed.get(b"k")).value)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(get)
    assert values == [b"v"] * 3
    assert not is_lent(client)


@needs_epoll
@pytest.mark.parametrize("call", ["get", "put"])
async def test_the_answer_to_a_call_that_is_cancelled_is_taken(client, feed, node, call):
    await feed.put(b"k", b"v")
    await until_lent(feed)
    assert is_lent(client)
    (connection,) = node.connections
    send, held = connection.transport.send, []
    connection.transport.send = lambda *buffers: held.append(buffers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.get if call == "get" else lambda key: feed.put(key, b"w"), b"k")
        while not held:
            await trio.lowlevel.checkpoint()
        assert is_lent(client)
        nursery.cancel_scope.cancel()
    assert not is_lent(client)
    connection.transport.send = send
    for buffers in held:
        send(*buffers)
    while client._core.session._by_id:
        await trio.lowlevel.checkpoint()
    assert (await feed.get(b"k")).value == (b"v" if call == "get" else b"w")


@needs_epoll
async def test_a_writer_after_lone_calls_has_its_answers(client, feed):
    await until_lent(feed)
    assert is_lent(client)
    async with feed.writer() as writer:
        await writer.put(b"k", b"v")
        await writer.flush()
        assert not is_lent(client)
        assert (await feed.get(b"k")).value == b"v"


@needs_epoll
async def test_a_writer_beside_a_lone_call_has_its_answers(client, feed):
    """The call reads for it, and then gives the socket back."""
    await feed.put(b"k", b"v")
    await until_lent(feed)
    async with feed.writer() as writer, trio.open_nursery() as nursery:
        nursery.start_soon(feed.get, b"k")
        await trio.lowlevel.checkpoint()
        await writer.put(b"k", b"w")
        await writer.flush()
    assert (await feed.get(b"k")).value == b"w"


@needs_epoll
async def test_a_socket_is_not_lent_for_long_without_a_call(client, feed):
    await until_lent(feed)
    assert is_lent(client)
    with trio.fail_after(60):
        while is_lent(client):
            await trio.lowlevel.checkpoint()
    await feed.get(b"k")
    assert is_lent(client)


@needs_epoll
async def test_a_lone_call_survives_a_connection_that_breaks(client, feed, running):
    await feed.put(b"k", b"v")
    await until_lent(feed)
    for number in range(3):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.put, b"k", b"%d" % number)
            await trio.lowlevel.checkpoint()
            running.cut_connections()
    assert (await feed.get(b"k")).value == b"2"
    assert sum(partition.high_seq for partition in running.node.feeds.named("orders").partitions) == 4


@needs_epoll
async def test_a_request_is_not_sent_on_a_connection_that_has_ended_in_a_pause(running, client, feed, monkeypatch):
    """The node has gone meanwhile, and nobody has read."""
    monkeypatch.setattr(lending, "UNREAD_SECONDS", 0.0)  # a node may stop in less
    patient = client._core.retry_for_s
    await until_lent(feed)
    assert is_lent(client)
    await running.stop()
    client._runner._retry_for_s = 0.1
    with pytest.raises(tailrace.Unreachable) as caught:
        await feed.put(b"k", b"v")
    assert caught.value.outcome == "not sent"
    client._runner._retry_for_s = patient
    await running.start()
    assert (await feed.put(b"k", b"v")).seq == 1


@needs_epoll
async def test_a_read_that_wakes_the_task_of_a_connection_that_goes_on(client, feed):
    """As TLS does that has many small records."""
    await feed.put(b"k", b"v")
    await until_lent(feed)
    transport = client._runner._link._transport

    def read_lent():
        del transport.read_lent
        transport._wake_reader()
        return False

    transport.read_lent = read_lent
    client._runner._lender._began_at = -1.0
    for _ in range(3):
        assert (await feed.get(b"k")).value == b"v"
    assert client._runner._link._transport is transport
    assert not hasattr(transport, "__dict__") or "read_lent" not in vars(transport)


@needs_epoll
async def test_a_lone_call_is_given_up_after_its_time(running, client, feed):
    await until_lent(feed)
    for connection in running.node.connections:
        connection.transport.send = lambda *buffers: None
    client._runner._retry_for_s = 0.2
    with pytest.raises(tailrace.Unreachable, match="given up"):
        await feed.get(b"k")
    client._runner._retry_for_s = 30.0
    running.cut_connections()
    assert await feed.get(b"k") is None


@needs_epoll
async def test_a_lone_call_ends_with_the_client(running):
    async def get(feed):
        with pytest.raises(tailrace.Unreachable, match="closed"):
            await feed.get(b"k")

    async with trio.open_nursery() as nursery, tailrace.connect(running.url) as client:
        feed = await client.create_feed("orders")
        await until_lent(feed)
        for connection in running.node.connections:
            connection.transport.send = lambda *buffers: None
        nursery.start_soon(get, feed)
        await trio.testing.wait_all_tasks_blocked()
        assert is_lent(client)


@needs_epoll
@pytest.mark.usefixtures("rarely_ticks")
async def test_lone_calls_read_their_answers_through_tls(tls_running, authority):
    async with tailrace.connect(tls_running.url, tls=authority.client()) as client:
        feed = await client.create_feed("orders")
        for number in range(2 * LONE_CALLS):
            await feed.put(b"k", bytes(number * 10_000))
            assert len((await feed.get(b"k")).value) == number * 10_000
        assert is_lent(client)


# The same answers as without


class Call(NamedTuple):
    """A call of a program. Times are in milliseconds."""

    pause: int  # after the call before it has begun
    is_put: bool
    takes: int  # until the node answers
    patience: int  # the time after which it is cancelled
    cut: bool  # the connection breaks as it begins


LONG = 100_000
calls = st.lists(
    st.builds(
        Call,
        st.integers(0, 30).map(lambda pause: 10 * pause),
        st.booleans(),
        st.integers(0, 20).map(lambda takes: 10 * takes + 1),
        st.just(LONG) | st.integers(0, 20).map(lambda patience: 10 * patience + 5),
        st.integers(0, 19).map(lambda number: number == 0),
    ),
    max_size=15,
)


class FakeNode:
    """Answers a GET after the time that its key names, and a WRITE after a millisecond with its producer's number."""

    def __init__(self, nursery):
        self._nursery = nursery

    async def serve(self, transport):
        decoder = FrameDecoder()
        self._nursery.start_soon(transport.run)
        with contextlib.suppress(OSError):
            while data := await transport.receive():
                for frame in decoder.receive_data(data):
                    self._nursery.start_soon(self._answer, transport, frame)
        transport.close()

    async def _answer(self, transport, frame):
        opcode, _, id, body = frame
        if opcode is Opcode.HELLO:
            greeting = HelloOk(1, "00" * 16, "00" * 16, "x", 1 << 25, 10.0, ("memory", "disk"), default_level="disk")
            transport.send(greeting.encode())
        elif opcode is Opcode.PARTITIONS:
            transport.send(encode_json(Opcode.RESULT, {"feed": {"feed_id": "00" * 16}, "partitions": [{}]}, id))
        elif opcode is Opcode.GET:
            (key,) = Get.decode(body).keys
            await trio.sleep(int(key.split()[0]) / 1000)
            transport.send(lone_got(id, 0, bytes(16), 1, 1, b"value of " + key))
        elif opcode is Opcode.WRITE:
            await trio.sleep(0.001)
            seq = BlockHeader.unpack(Write.decode(body).block[:HEADER_BYTES]).producer_seq
            transport.send(Written(0, bytes(16), seq, seq).encode(id))


async def with_client(use):
    """Calls ``use`` with a client of a `FakeNode`."""
    async with trio.open_nursery() as nursery:
        network = Network(random.Random(1), nursery, lambda *_: None)
        network.seconds_max = 0.0
        listener = await network.of("node").listen("node", 1)
        nursery.start_soon(listener.serve, FakeNode(nursery).serve)
        host = Host(connect=network.of("program").connect, random=random.Random(2))
        async with Client("tailrace://node:1", host=host) as client:
            await use(network, client)
        nursery.cancel_scope.cancel()


class Program:
    """Makes calls, and notes each one's answer, None if it was cancelled, and its time in milliseconds."""

    def __init__(self, program):
        self._calls = program
        self.found = {}

    async def run(self, network, client):
        async with trio.open_nursery() as callers:
            for number, call in enumerate(self._calls):
                await trio.sleep(call.pause / 1000)
                callers.start_soon(self._call, client.feed("orders"), number, call)
                if call.cut:
                    await trio.sleep(0.002)
                    network.drop_all({"node"})
        await trio.sleep(1.0)  # longer than any answer takes
        assert client._core.session.idle
        assert not client._core.session._by_id, "the answers to calls that were cancelled are taken"

    async def _call(self, feed, number, call):
        key, began, answer = b"%d %d" % (call.takes, number), trio.current_time(), None
        with trio.move_on_after(call.patience / 1000):
            answer = await (feed.put(key, b"v") if call.is_put else feed.get(key))
        self.found[number] = answer, round((trio.current_time() - began) * 1000)


def check(program):
    """Runs a program, and compares each call with what it has to find."""
    run = Program(program)
    trio.run(with_client, run.run, clock=trio.testing.MockClock(autojump_threshold=0))
    seqs = []
    for number, call in enumerate(program):
        answer, took = run.found[number]
        if not any(call.cut for call in program) and number:  # the first one also asks for the feed
            expected = min(1 if call.is_put else call.takes, call.patience)
            assert took == expected, f"call {number}: {took} ms in place of {expected}"
            assert (answer is None) == (took == call.patience)
        if answer is None:
            assert call.patience < LONG
        elif call.is_put:
            seqs.append(answer.seq)
        else:
            assert answer.value == b"value of %d %d" % (call.takes, number)
    assert len(set(seqs)) == len(seqs), "each row has a version of its own"


@settings(max_examples=examples(100))
@given(calls, st.sampled_from([0, 1, LONE_CALLS, LONG]))
def test_each_call_has_its_answer_in_time_whoever_reads_it(program, lone_calls):
    with mock.patch.object(lending, "LONE_CALLS", lone_calls):
        check(program)


@pytest.fixture
def interrupts():
    """A function that interrupts the main task, as Ctrl-C does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_in_the_middle_of_a_read_loses_no_answer_of_others(interrupts):
    found = []

    async def beside(feed):
        found.append((await feed.get(b"1 beside")).value)

    async def use(_, client):
        session, feed = client._core.session, client.feed("orders")
        receive_data = session.receive_data

        def interrupted(data):
            session.receive_data = receive_data
            interrupts()
            receive_data(data)

        await feed.get(b"1 k")
        async with trio.open_nursery() as callers:
            callers.start_soon(beside, feed)
            session.receive_data = interrupted
            with pytest.raises(KeyboardInterrupt):
                await feed.get(b"11 k")
        assert found == [b"value of 1 beside"]
        assert (await feed.get(b"1 later")).value == b"value of 1 later"
        await trio.sleep(1.0)
        assert not session._by_id

    with mock.patch.object(lending, "LONE_CALLS", 0):
        trio.run(with_client, use, clock=trio.testing.MockClock(autojump_threshold=0))


def _never(self):
    """Leaves the socket to nobody."""


def _ends_alone(self, *, was_alone):
    """Leaves the socket lent, though others wait."""
    self._is_used = False


PLANTED = {
    "the socket stays lent while others wait": (Lender, "ended", _ends_alone),
    "the socket stays lent after a call was cancelled": (Lender, "take_back", _never),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug):
    get = Call(0, False, 11, LONG, False)
    beside = [get._replace(pause=20), get._replace(takes=51)]
    cancelled = [get._replace(pause=20, takes=51, patience=5), get._replace(pause=10, takes=11)]
    with mock.patch.object(lending, "LONE_CALLS", 0):
        check([*beside, *cancelled, *beside])
        with mock.patch.object(*PLANTED[bug]), pytest.raises(AssertionError):
            check([*beside, *cancelled, *beside])
