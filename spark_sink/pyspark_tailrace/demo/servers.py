"""The servers of the demonstration: a set of three, whose leader is killed for good.

Why three and not a leader with one replica: of a replica without a vote nobody waits for, so the promotion of it may
lose what Spark was told was written, and Spark never writes that again. In a set a write at level quorum is on the
disks of two before it is acknowledged, and whoever is promoted has it.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
from typing import TYPE_CHECKING

import trio

from pyspark_tailrace.demo.failure import DemoFailed
from pyspark_tailrace.demo.server import COMMAND, HOST, Server

if TYPE_CHECKING:
    from pathlib import Path

    import tailrace

COUNT = 3
PORTS = (20_000, 32_000)


class Servers:
    """A set of ``COUNT`` servers on ``folders``; each logs to its own of ``logs``."""

    def __init__(self, folders: list[Path], logs: list[Path]) -> None:
        ports = _free_ports(len(folders))
        members = [f"{HOST}:{port}" for port in ports]
        self.all = [Server(data, log, port, members) for data, log, port in zip(folders, logs, ports, strict=True)]
        self.killed: Server | None = None

    @property
    def url(self) -> str:
        """Where clients find the set, whoever leads it."""
        return "tailrace://" + ",".join(server.address for server in self.all)

    @property
    def process_ids(self) -> list[int]:
        """Of those that have been started."""
        return [server.process_id for server in self.all if server.process_id is not None]

    async def start(self) -> None:
        """Starts all; returns once they are ready. DemoFailed as of `Server`."""
        async with trio.open_nursery() as nursery:
            for server in self.all:
                nursery.start_soon(server.start)

    async def watch(self) -> None:
        """Raises DemoFailed where one ends without having been told to; else it never returns."""
        async with trio.open_nursery() as nursery:
            for server in self.all:
                nursery.start_soon(server.watch)

    async def stop(self) -> None:
        """Stops all that run. Not to be cancelled."""
        with trio.CancelScope(shield=True):
            for server in self.all:
                await server.stop()

    async def leader(self, client: tailrace.Client) -> Server:
        """Who leads, by what the node says that answers ``client``."""
        feeds = await client.feeds()
        partitions = await client.feed(feeds[0].name).partitions()
        found = [server for server in self.all if server.address == partitions[0].leader]
        if not found:
            raise DemoFailed(f"the leader is said to be at {partitions[0].leader!r}, where none of the servers is")
        return found[0]

    async def kill(self, server: Server) -> None:
        """Ends one by SIGKILL, at once."""
        self.killed = server
        await server.kill()

    async def promote(self) -> Server:
        """Makes another one than the killed one lead, as an operator does. DemoFailed with what the command says.

        One after the other is tried: one that had not caught up yet when the leader was killed is refused.
        """
        said = []
        for server in self.all:
            if server is self.killed:
                continue
            done = await trio.run_process(
                [*COMMAND, *promotion(server)],
                env=dict(os.environ),
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if not done.returncode:
                return server
            said.append(done.stdout.decode(errors="replace").strip())
        raise DemoFailed(f"no other server could be promoted: {'; '.join(said)}")

    async def revive(self) -> None:
        """Starts the killed one again."""
        if self.killed is not None:
            await self.killed.start()
            self.killed = None


def promotion(server: Server) -> list[str]:
    """What ``tailrace`` is called with to make ``server`` lead."""
    return ["promote", "--node", server.address]


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now: each member of a set has to know those of all before it starts.

    None that outgoing connections are given: who tries again and again to connect to one of these, where nobody listens
    any more, is connected to itself some day.
    """
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(*PORTS)
        with contextlib.suppress(OSError), socket.socket() as sock:
            sock.bind((HOST, port))
            found.add(port)
    return sorted(found)
