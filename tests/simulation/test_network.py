"""The network in memory does to connections all that a real one may do."""

import contextlib
import random

import pytest
import trio
import trio.testing

from tailrace.errors import Unreachable
from tailrace.link.address import Address
from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode

from .network import INBOX_BYTES, SOCKET_BYTES, Network

AT = Address("server", 4700)


class Made:
    """A network with a server that keeps what connects."""

    def __init__(self, nursery):
        self.heard = []
        self.network = Network(random.Random(1), nursery, lambda *what: self.heard.append(what))
        self.accepted = []
        self.nursery = nursery

    async def listen(self):
        listener = await self.network.of("server").listen(*AT)

        async def keep(transport):
            self.accepted.append(transport)
            await transport.run()

        self.nursery.start_soon(listener.serve, keep)

    async def connect(self):
        """Both ends of a connection."""
        client = await self.network.of("client").connect(AT)
        self.nursery.start_soon(client.run)
        await trio.testing.wait_all_tasks_blocked()
        return client, self.accepted[-1]


@pytest.fixture
def run():
    """Runs a function of a `Made` on virtual time."""

    def run(function):
        async def main():
            async with trio.open_nursery() as nursery:
                made = Made(nursery)
                await made.listen()
                await trio.testing.wait_all_tasks_blocked()
                await function(made)
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


async def receive_all(transport):
    data = b""
    while more := await transport.receive():
        data += more
    return data


def test_what_is_sent_arrives_in_order_and_then_the_end(run):
    async def body(made):
        client, server = await made.connect()
        client.send(b"one ", memoryview(b"two "))
        client.send(b"three")
        client.finish()
        assert await receive_all(server) == b"one two three"

    run(body)


def test_what_was_sent_before_an_orderly_end_still_arrives(run):
    async def body(made):
        client, server = await made.connect()
        client.send(b"the last words")
        client.close()
        assert await receive_all(server) == b"the last words"
        assert await client.receive() == b""

    run(body)


def test_who_does_not_read_stops_who_sends(run):
    async def body(made):
        client, server = await made.connect()
        for _ in range(100):
            client.send(bytes(1_000))
        await trio.sleep(10)
        assert client.backlog_bytes >= 100_000 - SOCKET_BYTES - INBOX_BYTES - 2_000
        read = 0
        while read < 100_000:
            read += len(await server.receive())
        assert client.backlog_bytes == 0

    run(body)


@pytest.mark.parametrize("is_way", [True, False])
def test_a_late_packet_arrives_once_it_is_delivered_and_what_came_before_it_at_once(run, is_way):
    async def body(made):
        client, server = await made.connect()
        other, others_server = await made.connect()
        late = client.outgoing.link if is_way else client.outgoing
        made.network.hold_up(late, lambda pipe, data: min(len(data), 8 - len(pipe.begun)))
        for part in (b"early ", b"late, ", b"later"):
            client.send(part)
        await trio.sleep(10)
        assert await server.receive() + await server.receive() == b"early la"
        with trio.move_on_after(10):
            raise AssertionError(await server.receive())
        server.send(b"the other way")
        assert await client.receive() == b"the other way"
        if not is_way:
            other.send(b"another connection")
            assert await others_server.receive() == b"another connection"
        made.network.deliver(late)
        client.finish()
        assert await receive_all(server) == b"te, later"

    run(body)


def test_late_frames_arrive_once_they_are_delivered_and_others_at_once(run):
    first, late, later, behind = (encode_frame(Opcode.NOOP, b"%d" % n, n) for n in (1, 2, 1, 2))

    async def body(made):
        client, server = await made.connect()
        way = client.outgoing.link
        made.network.hold_up_frames(way, lambda pipe, opcode, id, body: (opcode, id) == (Opcode.NOOP, 2))
        client.send(first + late)
        client.send(later)
        client.send(behind)
        await trio.sleep(10)
        assert await server.receive() + await server.receive() == first + later
        with trio.move_on_after(10):
            raise AssertionError(await server.receive())
        server.send(b"the other way")
        assert await client.receive() == b"the other way"
        client.finish()
        made.network.deliver(way)
        assert await receive_all(server) == late + behind

    run(body)


def test_a_pipe_knows_the_requests_for_streams_that_it_has_moved(run):
    async def body(made):
        client, server = await made.connect()
        client.send(encode_frame(Opcode.NOOP, b"", 1) + encode_frame(Opcode.STREAM_REQUEST, b"asked", 2))
        await server.receive()
        assert server.outgoing.back.requests == {2: b"asked"}

    run(body)


def test_nothing_moves_while_two_machines_are_cut_off(run):
    async def body(made):
        client, server = await made.connect()
        made.network.cut("client", "server")
        client.send(b"late")
        with trio.move_on_after(100):
            await server.receive()
            raise AssertionError("it has come through a cut")
        with trio.move_on_after(100):
            await made.network.of("client").connect(AT)
            raise AssertionError("it has connected through a cut")
        made.network.heal("client", "server")
        assert await server.receive() == b"late"

    run(body)


def test_a_way_that_is_cut_in_one_direction_carries_what_is_sent_in_the_other(run):
    async def body(made):
        client, server = await made.connect()
        made.network.cut_ways([("server", "client")])
        client.send(b"a question")
        assert await server.receive() == b"a question"
        server.send(b"its answer")
        with trio.move_on_after(100):
            await client.receive()
            raise AssertionError("it has come through a cut")
        with trio.move_on_after(100):
            await made.network.of("client").connect(AT)
            raise AssertionError("it has connected, and cannot have heard so")
        made.network.heal_ways([("server", "client")])
        assert await client.receive() == b"its answer"

    run(body)


def test_both_sides_hear_of_a_broken_connection(run):
    async def body(made):
        client, server = await made.connect()
        client.send(b"lost")
        made.network.drop(server)
        for transport in (client, server):
            with pytest.raises(ConnectionResetError):
                await transport.receive()

    run(body)


def test_nobody_listens_where_a_process_has_died(run):
    async def body(made):
        client, server = await made.connect()
        made.network.process_died("server")
        server.send(b"from beyond")
        with contextlib.suppress(ConnectionResetError):
            assert await receive_all(client) == b""
        with pytest.raises(Unreachable, match="refused"):
            await made.network.of("client").connect(AT)

    run(body)


def test_a_machine_without_power_says_nothing_until_it_is_up_again(run):
    async def body(made):
        client, server = await made.connect()
        server.send(b"on its way")
        made.network.machine_died("server")
        with trio.move_on_after(100):
            await client.receive()
            raise AssertionError("a dead machine has said something")
        made.network.machine_up("server")
        with pytest.raises(ConnectionResetError):
            await client.receive()

    run(body)


def test_the_tap_hears_what_arrives(run):
    async def body(made):
        client, server = await made.connect()
        client.send(b"up")
        assert await server.receive() == b"up"
        server.send(b"down")
        assert await client.receive() == b"down"
        assert made.heard == [(1, "client", "server", True, b"up"), (1, "client", "server", False, b"down")]

    run(body)
