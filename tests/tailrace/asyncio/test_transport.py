"""A connection's bytes under asyncio: over real sockets, with a server that says what a test tells it to."""

import asyncio
import contextlib
import os
import socket
import struct

import pytest
from tests.tailrace.asyncio.bridge import run, until

from tailrace.asyncio.opening import open_connection
from tailrace.asyncio.transport import WAITING_BYTES_MAX, closing
from tailrace.link.address import Address


class Peer:
    """The other side of a connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def end(self):
        """Closes the connection, after all that was written."""
        self.writer.close()
        await self.writer.wait_closed()

    def reset(self):
        """Breaks the connection."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def connected():
    """(transport, peer) of a new connection."""
    peers = asyncio.Queue()
    server = await asyncio.start_server(lambda *ends: peers.put_nowait(Peer(*ends)), "127.0.0.1", 0)
    async with server:
        transport = await open_connection(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
        async with closing(transport):
            peer = await peers.get()
            yield transport, peer
        await peer.end()


def test_bytes_come_in_order_and_end():
    async def main():
        async with connected() as (transport, peer):
            peer.writer.write(b"one")
            assert await transport.receive() == b"one"
            peer.writer.write(b"two")
            await peer.end()
            assert await transport.receive() == b"two"
            assert await transport.receive() == b""
            assert await transport.receive() == b"", "the end stays the end"

    run(main)


def test_sent_buffers_arrive_as_one_sequence():
    async def main():
        async with connected() as (transport, peer):
            large = os.urandom(5_000_000)
            transport.send(b"a", memoryview(b"b"), large)
            transport.send(b"c")
            assert await peer.reader.readexactly(len(large) + 3) == b"ab" + large + b"c"

    run(main)


def test_the_loop_stops_reading_while_nobody_takes_what_has_come():
    data = os.urandom(8 * WAITING_BYTES_MAX)

    async def main():
        async with connected() as (transport, peer):
            peer.writer.write(data)
            await until(lambda: transport.is_paused)
            reads = transport.reads
            for _ in range(10):
                await asyncio.sleep(0)
            assert transport.reads == reads
            received = b""
            while len(received) < len(data):
                received += await transport.receive()
            assert received == data

    run(main)


def test_a_cancelled_call_loses_no_bytes():
    async def main():
        async with connected() as (transport, peer):
            task = asyncio.create_task(transport.receive())
            await asyncio.sleep(0)
            peer.writer.write(b"data")
            await until(lambda: transport.reads)
            task.cancel()  # with the bytes at hand
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await transport.receive() == b"data"

    run(main)


def test_a_second_task_that_reads_is_refused():
    async def main():
        async with connected() as (transport, peer):
            task = asyncio.create_task(transport.receive())
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task reads this stream"):
                await transport.receive()
            peer.writer.write(b"data")
            assert await task == b"data"

    run(main)


def test_bytes_are_handed_over_as_they_come_until_the_end():
    async def main():
        async with connected() as (transport, peer):
            taken = []
            peer.writer.write(b"before")
            await until(lambda: transport.reads)
            task = asyncio.create_task(transport.receive_each(taken.append))
            await until(lambda: taken == [b"before"])
            peer.writer.write(b"behind")
            await peer.end()
            await task
            assert taken == [b"before", b"behind"]

    run(main)


def test_an_error_of_what_takes_the_bytes_is_raised():
    def refuse(_):
        raise ZeroDivisionError

    async def main():
        async with connected() as (transport, peer):
            task = asyncio.create_task(transport.receive_each(refuse))
            await asyncio.sleep(0)
            peer.writer.write(b"data")
            with pytest.raises(ZeroDivisionError):
                await task

    run(main)


def test_a_closed_transport_ends_the_wait_and_sends_nothing():
    async def main():
        async with connected() as (transport, peer):
            task = asyncio.create_task(transport.receive())
            await asyncio.sleep(0)
            transport.close()
            assert await task == b""
            transport.send(b"nothing")
            assert await peer.reader.read() == b""

    run(main)


def test_a_connection_that_breaks():
    async def main():
        async with connected() as (transport, peer):
            peer.reset()
            with pytest.raises(ConnectionResetError):
                await transport.receive()

    run(main)
