"""Many feeds in a set of three: connections of a pair of nodes, how soon a follower streams all, and what rest costs.

A follower is level when the leader has a stream of each partition to it, and its acknowledgement of all rows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trio

import tailrace
from _replicas.nodes import Nodes, a_set, ask
from _report import Line
from _server import Server, Watch
from tailrace.wire.opcodes import Opcode

_CLIENTS = 32
_REST_SECONDS = 10.0
# The seconds after which a run is given up.
_LEVEL_SECONDS_MAX = 600.0


async def feeds(folder: Path, log: Path, count: int, partitions: int) -> list[Line]:
    """Figures of ``count`` feeds of so many partitions, each with one row, on one fresh set."""
    with a_set(folder, log) as nodes:
        leader = await nodes.leader()
        began = time.perf_counter()
        async with tailrace.connect(nodes.url, retry_for=600) as client:
            await _create(client, count, partitions)
        lines = [Line("created, with a row in each, by 32 clients", time.perf_counter() - began, "s")]
        follower, third = await nodes.followers()
        total = count * partitions + 1
        status = await _level(leader, follower, total)
        lines += [
            Line("the same, and on all", time.perf_counter() - began, "s"),
            Line("processor time of the leader until then", leader.cpu_seconds(), "s"),
            Line("processor time of a follower until then", follower.cpu_seconds(), "s"),
            Line("connections of a follower at the leader", _connections(status, follower), ""),
        ]
        lines += await _at_rest({"leader": leader, "follower": follower, "other follower": third})
        lines += [Line("changes of the leader until then", await _term(leader) - 1, "", most=0)]
        lines += await _told(nodes, leader)
        follower.stop()
        with Server(follower.folder, log, follower.port, follower.options) as again:
            began = time.perf_counter()
            before = leader.cpu_seconds()
            await _level(leader, again, total)
            lines += [
                Line("restart: level after", time.perf_counter() - began, "s"),
                Line("restart: processor time of the follower", again.cpu_seconds(), "s"),
                Line("restart: processor time of the leader", leader.cpu_seconds() - before, "s"),
            ]
            left = [again if server is follower else server for server in nodes.servers if server is not leader]
            lines += await _after_a_kill(leader, left, total)
            term = max([await _term(server) for server in left])
            lines += [Line("leader killed: changes of the leader", term - 1, "", most=1)]
            lines += await _all_again([leader, *left], log, count, total)
        return [Line(f"{count:,} feeds of {partitions}: {line.what}", *line[1:]) for line in lines]


async def _create(client: tailrace.Client, count: int, partitions: int) -> None:
    async def create(first: int) -> None:
        for number in range(first, count, _CLIENTS):
            feed = await client.create_feed(f"feed-{number:05d}", partitions=partitions)
            await feed.put(b"key", b"value", level="quorum")

    async with trio.open_nursery() as nursery:
        for first in range(_CLIENTS):
            nursery.start_soon(create, first)


async def _at_rest(servers: dict[str, Server]) -> list[Line]:
    await trio.sleep(2.0)
    before = {name: server.cpu_seconds() for name, server in servers.items()}
    with contextlib.ExitStack() as stack:
        watches = {name: stack.enter_context(Watch(server)) for name, server in servers.items()}
        await trio.sleep(_REST_SECONDS)
    lines = []
    for name, server in servers.items():
        share = (server.cpu_seconds() - before[name]) / _REST_SECONDS
        memory = max(each.node for each in watches[name].samples) / 2**20
        lines.append(Line(f"at rest: processor of the {name}", 100 * share, "%"))
        lines.append(Line(f"at rest: memory of the {name}", memory, "MiB"))
    return lines


async def _term(server: Server) -> int:
    """Returns the term of the leader that ``server`` follows, or leads in; each change of the leader is a term."""
    return int((await ask(server, Opcode.MEMBER))["leader_term"])


async def _told(nodes: Nodes, leader: Server) -> list[Line]:
    began = time.perf_counter()
    await ask(leader, Opcode.STATUS)
    lines = [Line("status", time.perf_counter() - began, "s")]
    began = time.perf_counter()
    async with tailrace.connect(nodes.url) as client:
        await client.feeds()
    return [*lines, Line("feed list", time.perf_counter() - began, "s")]


async def _all_again(servers: list[Server], log: Path, count: int, total: int) -> list[Line]:
    """Figures of a stop and a start of all nodes, of which one is down already, and of dropping all feeds."""
    for server in servers:
        server.stop()
    started: list[Server] = []
    began = time.perf_counter()

    async def start(server: Server) -> None:
        again = await trio.to_thread.run_sync(Server, server.folder, log, server.port, server.options)
        started.append(again)

    try:
        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(start, server)
        lines = [Line("all restarted: ready after", time.perf_counter() - began, "s")]
        nodes = Nodes(started)
        async with tailrace.connect(nodes.url, retry_for=600) as client:
            await client.feed("feed-00000").put(b"key", b"again", level="quorum")
            lines += [Line("all restarted: a write at quorum is accepted after", time.perf_counter() - began, "s")]
            leader = await nodes.leader()
            for follower in await nodes.followers():
                await _level(leader, follower, total)
            lines += [
                Line("all restarted: level after", time.perf_counter() - began, "s"),
                Line("all restarted: feeds whose row is lost", await _lost(leader, total), "", most=0),
            ]
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for first in range(_CLIENTS):
                    nursery.start_soon(_drop, client, first, count)
            return [*lines, Line("all feeds dropped, by 32 clients", time.perf_counter() - began, "s")]
    finally:
        for server in started:
            server.kill()


async def _drop(client: tailrace.Client, first: int, count: int) -> None:
    for number in range(first, count, _CLIENTS):
        await client.drop_feed(f"feed-{number:05d}")


async def _after_a_kill(leader: Server, left: list[Server], total: int) -> list[Line]:
    began = time.perf_counter()
    leader.kill()
    now = await Nodes(left).leader()
    led = time.perf_counter() - began
    [other] = [server for server in left if server is not now]
    async with tailrace.connect(Nodes(left).url, retry_for=600) as client:
        feed = client.feed("feed-00000")
        await feed.put(b"key", b"later", level="quorum")
        wrote = time.perf_counter() - began
    await _level(now, other, total)
    lines = [
        Line("leader killed: another one leads after", led, "s"),
        Line("leader killed: a write at quorum is accepted after", wrote, "s"),
        Line("leader killed: its follower is level after", time.perf_counter() - began, "s"),
    ]
    return [*lines, Line("leader killed: feeds whose row is lost", await _lost(now, total), "", most=0)]


async def _lost(leader: Server, total: int) -> int:
    """Returns how many feeds have lost their row, which was acknowledged at quorum."""
    seqs = (await ask(leader, Opcode.MEMBER, {"seqs": True}))["seqs"]
    partitions = sum(map(len, seqs.values()))
    return sum(not any(of_feed) for of_feed in seqs.values()) + (total - partitions)


async def _level(leader: Server, follower: Server, total: int) -> dict[str, Any]:
    """Returns the leader's status once ``follower`` streams all partitions and has all of them."""
    async for status in _statuses(leader):
        for replica in status["replication"]["replicas"]:
            is_found = replica["address"] == f"127.0.0.1:{follower.port}"
            if is_found and replica["partitions"] == total and not replica["lag"]:
                return status
    raise SystemExit(f"no follower is level after {_LEVEL_SECONDS_MAX:g} s")


async def _statuses(server: Server) -> AsyncIterator[dict[str, Any]]:
    """A status of many feeds takes the node a while: this asks for a third of the time at most."""
    ends_at = time.monotonic() + _LEVEL_SECONDS_MAX
    while time.monotonic() < ends_at:
        began = time.monotonic()
        yield await ask(server, Opcode.STATUS)
        await trio.sleep(max(0.02, 2 * (time.monotonic() - began)))


def _connections(status: dict[str, Any], follower: Server) -> int:
    name = f"replica 127.0.0.1:{follower.port}"
    return sum(connection["name"] == name for connection in status["connections"])
