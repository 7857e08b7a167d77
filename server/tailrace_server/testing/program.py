"""Runs ``tailrace serve`` in a process of a test, which gives orders through stdin.

Each order is a line, and so is its answer on stdout. The process ends when its stdin does, so no node outlives tests:

    cut     breaks all connections, and refuses new ones
    heal    permits connections again
    role    answers "leader TERM" or "follower TERM"
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from typing import NoReturn

import trio

from tailrace import cli
from tailrace.cli.commands import installed_commands, make_app
from tailrace_server.config import Config
from tailrace_server.node import command, start
from tailrace_server.node.node import Node
from tailrace_server.runtime.host import system_host
from tailrace_server.serving import listeners
from tailrace_server.serving.listeners import ListenerHandlers
from tailrace_server.testing.cut_network import CutNetwork, CutWeb

_listen = listeners.listen

# The exit code of a node that ends because its test has ended.
ABANDONED = 1


def prepare() -> None:
    """Loads the parser of the command line in the template of the forks, which a start would load late."""
    import typer.main

    typer.main.get_command(make_app({"serve": installed_commands()["serve"]}))


def main(arguments: Sequence[str]) -> NoReturn:
    """Serves a node until it is stopped.

    Args:
        arguments: The options of ``tailrace serve``.
    """
    orders = Orders()
    vars(command)["open_node"] = orders.open_node
    # The listeners of HTTP and WebSocket are imported later, and take this one.
    vars(listeners)["listen"] = orders.listen
    threading.Thread(target=orders.obey, daemon=True).start()
    sys.argv = ["tailrace", "serve", *arguments]
    cli.main()


class Orders:
    """Carries out the orders of the test. The node exists from its ready line on."""

    def __init__(self) -> None:
        self._network: CutNetwork | None = None
        self._web = CutWeb()
        self._node: Node | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    @contextlib.asynccontextmanager
    async def open_node(self, config: Config) -> AsyncIterator[Node]:
        """Opens a node whose network can be cut, and checks its invariants before a clean stop."""
        host = system_host(config)
        self._network = CutNetwork(host.network)
        async with start.open_node(config, dataclasses.replace(host, network=self._network)) as node:
            self._node, self._token = node, trio.lowlevel.current_trio_token()
            yield node
            node.check()

    def listen(
        self, listener: ListenerHandlers, address: tuple[str, int]
    ) -> contextlib.AbstractAsyncContextManager[tuple[str, int]]:
        """Listens for HTTP or WebSocket, with connections that can be cut."""
        return _listen(self._web.behind(listener), address)

    def obey(self) -> NoReturn:
        """Reads orders until stdin ends, and ends the process then."""
        with open(0, "rb", 0, closefd=False) as orders:
            for order in orders:
                answer = trio.from_thread.run_sync(self._carry_out, order.strip(), trio_token=self._token)
                os.write(1, f"{answer}\n".encode())
        os._exit(ABANDONED)

    def _carry_out(self, order: bytes) -> str:
        assert self._network is not None
        if order == b"cut":
            self._network.cut()
            self._web.cut()
        elif order == b"heal":
            self._network.heal()
            self._web.heal()
        elif order == b"role":
            return self._role()
        else:
            raise ValueError(f"there is no order {order!r}")
        return "done"

    def _role(self) -> str:
        assert self._node is not None
        for member in self._node.members.values():
            seen = member.local.state()
            return f"{'leader' if seen.leads else 'follower'} {seen.term}"
        return "leader 0"
