"""A transport without a socket behaves as one with a socket."""

from __future__ import annotations

import pytest
import trio

from tailrace_server.serving.tailing.loopback import loopback


@pytest.fixture
def ends():
    return loopback("client", "server")


async def test_each_end_is_named_by_the_other(ends):
    assert [end.peer for end in ends] == ["server", "client"]


async def test_what_one_end_sends_the_other_receives(ends):
    client, server = ends
    client.send(b"ab", memoryview(b"cd"))
    client.send(b"ef")
    assert client.backlog_bytes == 6
    assert await server.receive() == b"abcdef"
    assert client.backlog_bytes == 0
    server.send(b"answer")
    assert await client.receive() == b"answer"


async def test_receive_waits(ends, nursery):
    client, server = ends
    received = []

    async def receive():
        received.append(await server.receive())

    nursery.start_soon(receive)
    await trio.testing.wait_all_tasks_blocked()
    assert received == []
    client.send(b"late")
    await trio.testing.wait_all_tasks_blocked()
    assert received == [b"late"]


async def test_run_tells_when_everything_was_taken(ends, nursery):
    client, server = ends
    drained = []
    client.on_drained = lambda: drained.append(client.backlog_bytes)
    client.send(b"first")
    nursery.start_soon(client.run)
    await trio.testing.wait_all_tasks_blocked()
    assert drained == []
    await server.receive()
    await trio.testing.wait_all_tasks_blocked()
    assert drained == [0]
    client.close()


async def test_what_was_sent_before_a_close_arrives(ends):
    client, server = ends
    client.send(b"last words")
    client.close()
    assert await server.receive() == b"last words"
    assert await server.receive() == b""
    assert await client.receive() == b""


async def test_a_close_ends_who_waits(ends):
    client, server = ends
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.receive)
        nursery.start_soon(client.receive)
        nursery.start_soon(client.run)
        await trio.testing.wait_all_tasks_blocked()
        client.close()
    server.send(b"to nobody")
    assert server.backlog_bytes == 0
    client.close()
