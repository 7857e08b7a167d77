"""Runs the command ``tailrace`` in a process of a test, as the test orders it (``Orders``).

The process ends when its stdin does, so that no node
outlives the tests. When a node is stopped cleanly, the process checks the invariants of the node first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from tailrace import cli
from tailrace_server.node import command, start
from tailrace_server.runtime.host import Host, system_host

from .bugs import BUGS
from .mortal_disk import Death, MortalDisk
from .troubled_disk import TroubledDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tailrace_server.config import Config
    from tailrace_server.node.node import Node


@dataclass(frozen=True)
class Orders:
    """How a process differs from the plain command.

    Attributes:
        limits: Fields of ``Limits`` and their values.
        storage: Fields of ``StorageConfig`` and their values.
        routes: A file, which is read at each connection: a JSON object {port: the port that the test has put in front
            of it}. "" for none.
        bug: A name of ``bugs.BUGS``; "" for none.
        planted: Python code that runs before the node.
        dies_at: The process gets a SIGKILL at this call that changes the disk, counted from the start; 0 for never.
        dies_at_stop: Likewise, counted from the moment when a clean stop begins.
        calls: Only calls of this name count; "" counts all.
        how: The process dies "before" or "after" that call, or when a write is "torn" in the middle.
        may_hang: After a SIGUSR1 no fsync returns.
        disk_order: A file that names the trouble of the disk, if it has any (troubled_disk.py). "" for none.
        forgets: Data without an fsync is lost with the process, as in a power cut.
    """

    limits: dict[str, Any] = field(default_factory=dict)
    storage: dict[str, Any] = field(default_factory=dict)
    routes: str = ""
    bug: str = ""
    planted: str = ""
    dies_at: int = 0
    dies_at_stop: int = 0
    calls: str = ""
    how: str = "before"
    may_hang: bool = False
    disk_order: str = ""
    forgets: bool = False

    @property
    def breaks_disk(self) -> bool:
        """Returns whether the node needs a `MortalDisk`."""
        return bool(self.dies_at or self.dies_at_stop or self.may_hang or self.forgets)


# Parts of a published batch so small that each partition takes a batch a few rows at a time.
SMALL_PARTS = Orders(
    storage={"publish_bytes_max": 2_000},
    planted="from tailrace_server.publishing import publisher\npublisher.STEP_S = 0.0\n",
)


@contextlib.asynccontextmanager
async def open_node(orders: Orders, config: Config) -> AsyncIterator[Node]:
    """Opens a node as it is ordered. Checks its invariants before a clean stop."""
    config = dataclasses.replace(
        config,
        limits=dataclasses.replace(config.limits, **orders.limits),
        storage=dataclasses.replace(config.storage, **orders.storage),
    )
    death = Death(orders.how, orders.calls, orders.dies_at)
    if orders.may_hang:
        signal.signal(signal.SIGUSR1, death.hang)
    async with start.open_node(config, _host(orders, death, config)) as node:
        yield node
        node.check()
        if orders.dies_at_stop:
            death.count_anew(orders.dies_at_stop)


def _host(orders: Orders, death: Death, config: Config) -> Host:
    host = system_host(config)
    if orders.breaks_disk:
        return dataclasses.replace(host, disk=MortalDisk(death, forgets=orders.forgets))
    return dataclasses.replace(host, disk=TroubledDisk(orders.disk_order)) if orders.disk_order else host


def reroute(path: str) -> None:
    """Lets each connection to a port that the file names go to another port."""
    connect = trio.open_tcp_stream

    def routed(port: int) -> int:
        routes: dict[str, int] = json.loads(Path(path).read_text())
        return routes.get(str(port), port)

    async def open_tcp_stream(host: str, port: int, **options: Any) -> trio.SocketStream:
        return await connect(host, routed(port), **options)

    trio.open_tcp_stream = open_tcp_stream  # type: ignore[assignment]


def end_with_stdin() -> None:
    """Ends the process when its stdin ends."""
    os.read(0, 1)
    os._exit(1)


def main(orders: Orders, arguments: list[str]) -> None:
    """Runs the command with these arguments."""
    threading.Thread(target=end_with_stdin, daemon=True).start()
    exec(orders.planted, {})
    if orders.routes:
        reroute(orders.routes)
    if orders.bug:
        BUGS[orders.bug]()
    command.open_node = partial(open_node, orders)  # type: ignore[assignment]
    sys.argv = ["tailrace", *arguments]
    cli.main()
