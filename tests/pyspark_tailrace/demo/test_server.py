"""The server's process, a real one."""

from __future__ import annotations

import os
import signal

import pytest
import trio

import tailrace
from pyspark_tailrace.demo.failure import DemoFailed
from pyspark_tailrace.demo.server import Server

pytestmark = pytest.mark.slow


@pytest.fixture
async def server(tmp_path):
    server = Server(tmp_path / "data", tmp_path / "server.log")
    yield server
    await server.stop()


async def test_killed_server_comes_back_at_the_same_place_with_its_data(server):
    await server.start()
    url, process = server.url, server.process_id
    async with tailrace.connect(url) as client, trio.open_nursery() as nursery:
        nursery.start_soon(server.watch)
        feed = await client.create_feed("orders")
        await feed.put(b"k", b"v")
        await server.kill()
        await server.start()
        assert (server.url, server.process_id == process) == (url, False)
        assert (await feed.get(b"k")).value == b"v"
        nursery.cancel_scope.cancel()
    await server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(server.process_id, 0)


async def test_server_that_is_killed_by_somebody_else_is_a_failure(server):
    await server.start()
    os.kill(server.process_id, signal.SIGKILL)
    with pytest.raises(DemoFailed, match=r"^the server was ended by SIGKILL"):
        await server.watch()


async def test_server_that_cannot_start_says_why(server):
    server.data.write_text("not a folder")
    with pytest.raises(DemoFailed, match=r"(?s)^the server could not start; the end of its log:\n.*data"):
        await server.start()


async def test_server_that_never_started_is_stopped_without_ado(server):
    await server.stop()
    assert server.process_id is None
