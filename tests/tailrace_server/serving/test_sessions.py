"""The connections of one client, one after the other: what arrives late on an earlier one is not done."""

import functools

import pytest
import trio
from tests.tailrace_server.raw_requests import KEY, block_of, write

import tailrace
from tailrace.errors import ProtocolError
from tailrace.trio.host import Host
from tailrace.trio.tcp import connect_tcp
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode

SESSION = "0123456789abcdef" * 2


async def test_a_write_that_is_late_on_an_earlier_connection_is_not_done(raw, feed, feed_id):
    async with raw() as earlier, raw() as later:
        await earlier.hello(session=SESSION)
        await later.hello(session=SESSION)
        answer = await later.ask(Opcode.WRITE, write(feed_id, block_of(KEY, producer_id=78, value=b"new")))
        assert answer.opcode is Opcode.WRITTEN
        await earlier.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, value=b"old")), 1))
        error = await earlier.error()
        assert type(error) is ProtocolError
        assert "the client has connected anew" in str(error)
        assert (await later.ask(Opcode.STATUS, b"{}", 2)).opcode is Opcode.RESULT
    assert (await feed.get(KEY)).value == b"new"


@pytest.mark.parametrize("sessions", [("", ""), (SESSION, ""), (SESSION, SESSION[::-1])])
async def test_other_connections_go_on(raw, node, sessions):
    async with raw() as one, raw() as other:
        await one.hello(session=sessions[0])
        await other.hello(session=sessions[1])
        assert (await one.ask(Opcode.STATUS, b"{}")).opcode is Opcode.RESULT


async def test_a_session_goes_on_after_its_first_connection_has_ended(raw, node):
    for _ in range(2):
        async with raw() as earlier:
            await earlier.hello(session=SESSION)
            async with raw() as later:
                await later.hello(session=SESSION)
                await earlier.error()
                assert await earlier.is_closed()
                assert (await later.ask(Opcode.STATUS, b"{}")).opcode is Opcode.RESULT


@pytest.mark.parametrize("session", ["x", SESSION.upper(), SESSION + "0", SESSION + "\n"])
async def test_what_is_no_session(raw, session):
    async with raw() as connection:
        await connection.send(Hello(session=session).encode())
        error = await connection.error()
        assert type(error) is ProtocolError
        assert "32 hex digits are needed" in str(error)


class Late:
    """A way to connect on whose first connection the network holds what the client sends, past the client's end."""

    def __init__(self):
        self.holds = False
        self._first = None
        self._held = []
        self._reading = None

    async def connect(self, address):
        transport = await connect_tcp(address)
        if self._first is None:
            self._first = transport.send, transport.close
            transport.send = functools.partial(self._send, transport.send)
            transport.receive_each = functools.partial(self._receive_each, transport.receive_each)
            transport.close = lambda: None
        return transport

    def _send(self, send, *buffers):
        if self.holds:
            self._held += buffers
        else:
            send(*buffers)

    async def _receive_each(self, receive_each, take):
        with trio.CancelScope() as self._reading:
            return await receive_each(take)
        return False

    def break_client_side(self):
        self._reading.cancel()

    def deliver(self):
        """What was held arrives, and then the end."""
        send, close = self._first
        assert self._held
        send(b"".join(self._held))
        close()


async def given_up(feed):
    with trio.move_on_after(0.05) as scope:
        await feed.put(b"k", b"old")
    assert scope.cancelled_caught


async def test_a_put_is_not_overtaken_by_an_earlier_one_that_was_cancelled(running):
    late = Late()
    async with tailrace.connect(running.url, host=Host(connect=late.connect)) as client:
        feed = await client.create_feed("orders", partitions=1)
        await feed.put(b"k", b"zero")
        late.holds = True
        await given_up(feed)
        late.break_client_side()
        version = await feed.put(b"k", b"new")
        late.deliver()
        with trio.fail_after(60):
            while len(running.node.connections) > 1:  # the node has yet to read the earlier one to its end
                await trio.lowlevel.checkpoint()
        assert (await feed.get(b"k")).version == version
