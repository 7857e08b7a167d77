"""The set of servers, real ones."""

from __future__ import annotations

import os
import signal

import pytest
import trio

import tailrace
from pyspark_tailrace.demo import servers as module
from pyspark_tailrace.demo.failure import DemoFailed
from pyspark_tailrace.demo.servers import COUNT, Servers

pytestmark = pytest.mark.slow


@pytest.fixture
async def servers(tmp_path):
    folders = [tmp_path / f"server-{number}" for number in range(COUNT)]
    servers = Servers(folders, [folder.with_suffix(".log") for folder in folders])
    yield servers
    await servers.stop()


async def test_another_one_leads_after_the_leader_was_killed_and_has_what_was_acknowledged(servers):
    await servers.start()
    async with tailrace.connect(servers.url, retry_for=50) as client, trio.open_nursery() as nursery:
        nursery.start_soon(servers.watch)
        feed = await client.create_feed("orders")
        await feed.put(b"k", b"v", level="quorum")
        leader = await servers.leader(client)
        await servers.kill(leader)
        successor = await servers.successor(client)
        assert successor is not leader
        assert (await feed.get(b"k", level="quorum")).value == b"v"
        assert await servers.leader(client) is successor
        await servers.revive()
        assert servers.killed is None
        await feed.put(b"k", b"w", level="quorum")
        nursery.cancel_scope.cancel()
    await servers.stop()
    for process in servers.process_ids:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


async def test_server_that_is_killed_by_somebody_else_is_a_failure(servers):
    await servers.start()
    os.kill(servers.process_ids[1], signal.SIGKILL)
    with pytest.raises(ExceptionGroup) as failed:
        await servers.watch()
    assert failed.group_contains(DemoFailed, match=r"^the server was ended by SIGKILL")


async def test_servers_that_choose_no_leader_are_a_failure(servers, monkeypatch):
    monkeypatch.setattr(module, "SUCCESSION_TIMEOUT_S", 1.0)
    await servers.start()
    async with tailrace.connect(servers.url) as client:
        await client.create_feed("orders")
        leader = await servers.leader(client)
        for server in servers.all:
            if server is not leader:
                await server.kill()
        servers.killed = leader
        with pytest.raises(DemoFailed, match="have not chosen another leader within 1 s"):
            await servers.successor(client)


async def test_each_member_has_a_port_of_its_own_and_the_same_list(servers):
    assert len({server.port for server in servers.all}) == COUNT
    assert {server.arguments[-1] for server in servers.all} == {servers.url.removeprefix("tailrace://")}
