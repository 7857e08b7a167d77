"""A node alone, a leader with plain replicas, or a set, on this machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

from _server import Server, free_port
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import CheckpointRequest

POLL_SECONDS = 0.005
LEADER_SECONDS_MAX = 30.0


class Nodes:
    """Those that run, the first of them not always the leader."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        """All of them."""
        return "tailrace://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    async def leader(self) -> Server:
        """Who leads, once somebody does."""
        deadline = time.monotonic() + LEADER_SECONDS_MAX
        while time.monotonic() < deadline:
            for server in self.servers:
                with contextlib.suppress(OSError):
                    if (await ask(server, Opcode.MEMBER))["role"] == "leader":
                        return server
            await trio.sleep(10 * POLL_SECONDS)
        raise SystemExit(f"nobody leads after {LEADER_SECONDS_MAX:g} s")

    async def followers(self) -> list[Server]:
        """The others."""
        leader = await self.leader()
        return [server for server in self.servers if server is not leader]

    async def caught_up(self, poll_s: float = POLL_SECONDS) -> None:
        """Returns once every follower has all that the leader has. Each poll is a connection, and costs the node."""
        leader = await self.leader()
        for server in self.servers:
            if server is not leader:
                await caught_up(server, leader, poll_s)


async def caught_up(server: Server, leader: Server, poll_s: float = POLL_SECONDS) -> None:
    """Returns once ``server`` has all that ``leader`` had when this was called."""
    wanted = (await ask(leader, Opcode.MEMBER, {"seqs": True}))["seqs"]
    while True:
        found = (await ask(server, Opcode.MEMBER, {"seqs": True}))["seqs"]
        if all(found.get(feed_id, []) >= seqs for feed_id, seqs in wanted.items()):
            return
        await trio.sleep(poll_s)


async def flush(server: Server, feed: str) -> None:
    """Returns once all rows that a node has of a feed are in segments. A partition is flushed once a second at most."""
    while True:
        told = await ask(server, Opcode.PARTITIONS, {"name": feed})
        feed_id = bytes.fromhex(told["feed"]["feed_id"])
        lacking = [each["id"] for each in told["partitions"] if each["flushed_seq"] < each["high_seq"]]
        if not lacking:
            return
        for partition in lacking:
            request = CheckpointRequest(feed_id, partition, flush=True)
            checkpoint = await ask(server, Opcode.SEGMENT_CHECKPOINT, request.to_json())
            await ask(server, Opcode.SEGMENT_RELEASE, {"checkpoint": checkpoint["checkpoint"]})
        await trio.sleep(10 * POLL_SECONDS)


async def ask(server: Server, opcode: Opcode, value: dict[str, Any] | None = None) -> dict[str, Any]:
    """A request between nodes, or of an operator, and its answer. OSError where it is not there; SystemExit refused."""
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
        await stream.send_all(Hello().encode() + encode_json(opcode, value or {}, 1))
        decoder = FrameDecoder()
        while True:
            data = await stream.receive_some()
            if not data:
                raise OSError("the node has closed the connection")
            for frame in decoder.receive_data(bytes(data)):
                if frame.opcode is Opcode.RESULT:
                    return decode_json(frame.body, "RESULT")
                if frame.opcode is Opcode.ERROR:
                    raise SystemExit(f"{opcode.name}: {decode_json(frame.body, 'ERROR')}")


@contextlib.contextmanager
def replicated(folder: Path, log: Path, replicas: int) -> Iterator[Nodes]:
    """A leader by itself, and so many plain replicas of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        leader = stack.enter_context(Server(folder / "n0", log))
        options = ("--replica-of", f"127.0.0.1:{leader.port}")
        others = [
            stack.enter_context(Server(folder / f"n{number}", log, options=options))
            for number in range(1, replicas + 1)
        ]
        yield Nodes([leader, *others])


@contextlib.contextmanager
def a_set(folder: Path, log: Path, count: int = 3, failover: str = "auto") -> Iterator[Nodes]:
    """A set of so many."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = [free_port() for _ in range(count)]
    options = ("--failover", failover, "--members", ",".join(f"127.0.0.1:{port}" for port in ports))
    with contextlib.ExitStack() as stack:
        yield Nodes(
            [
                stack.enter_context(Server(folder / f"n{number}", log, port, options))
                for number, port in enumerate(ports)
            ]
        )
