"""The servers of the demonstration: a set of three, whose leader is killed for good.

Why three servers, and not a leader with one replica: writes do not wait for a replica without a vote. Its promotion may
lose acknowledged rows, which Spark never writes again. In a set, a write at level quorum is on the disks of two members
before it is acknowledged, and the next leader, which the members choose by themselves, has it.
"""

from __future__ import annotations

import contextlib
import random
import socket
from typing import TYPE_CHECKING

import trio

from pyspark_tailrace.demo.failure import DemoFailed
from pyspark_tailrace.demo.server import HOST, Server

if TYPE_CHECKING:
    from pathlib import Path

    import tailrace

COUNT = 3
PORTS = (20_000, 32_000)
# Far more than a failover takes on a busy machine.
SUCCESSION_TIMEOUT_S = 60.0
POLL_S = 0.02


class Servers:
    """A set of ``COUNT`` servers on ``folders``; each logs to its own of ``logs``."""

    def __init__(self, folders: list[Path], logs: list[Path]) -> None:
        ports = _free_ports(len(folders))
        members = [f"{HOST}:{port}" for port in ports]
        self.all = [Server(data, log, port, members) for data, log, port in zip(folders, logs, ports, strict=True)]
        self.killed: Server | None = None

    @property
    def url(self) -> str:
        """The URL for clients, with the addresses of all members."""
        return "tailrace://" + ",".join(server.address for server in self.all)

    @property
    def process_ids(self) -> list[int]:
        """The process ids of the servers that were started."""
        return [server.process_id for server in self.all if server.process_id is not None]

    async def start(self) -> None:
        """Starts all servers, and returns when they are ready. Raises DemoFailed if one cannot start."""
        async with trio.open_nursery() as nursery:
            for server in self.all:
                nursery.start_soon(server.start)

    async def watch(self) -> None:
        """Raises DemoFailed if a server ends by itself; otherwise it never returns."""
        async with trio.open_nursery() as nursery:
            for server in self.all:
                nursery.start_soon(server.watch)

    async def stop(self) -> None:
        """Stops all servers that run. Shielded from cancellation."""
        with trio.CancelScope(shield=True):
            for server in self.all:
                await server.stop()

    async def leader(self, client: tailrace.Client) -> Server:
        """Returns the leader, as told by the node that answers ``client``."""
        feeds = await client.feeds()
        partitions = await client.feed(feeds[0].name).partitions()
        found = [server for server in self.all if server.address == partitions[0].leader]
        if not found:
            raise DemoFailed(f"a server names {partitions[0].leader!r} as leader, which is no member of the set")
        return found[0]

    async def kill(self, server: Server) -> None:
        """Ends a server by SIGKILL, at once."""
        self.killed = server
        await server.kill()

    async def successor(self, client: tailrace.Client) -> Server:
        """Waits until the others have chosen another leader, and returns it. Raises DemoFailed if they do not."""
        with trio.move_on_after(SUCCESSION_TIMEOUT_S):
            while True:
                leader = await self.leader(client)
                if leader is not self.killed:
                    return leader
                await trio.sleep(POLL_S)
        raise DemoFailed(f"the servers have not chosen another leader within {SUCCESSION_TIMEOUT_S:g} s")

    async def revive(self) -> None:
        """Starts the killed server again."""
        if self.killed is not None:
            await self.killed.start()
            self.killed = None


def _free_ports(count: int) -> list[int]:
    """Returns free ports: each member of a set has to know the ports of all members before it starts.

    They are outside of the range of outgoing connections. A process that keeps connecting to a port of that range
    without a listener is connected to itself some day.
    """
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(*PORTS)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind((HOST, port))
            found.add(port)
    return sorted(found)
