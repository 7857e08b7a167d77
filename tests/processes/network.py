"""The network between nodes: a link (proxy.py) for each pair of them and each way, which can be broken.

A node reads the file of its routes at each connection that it makes, so that nodes may come and move while others run.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from .node import HOST
from .proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    import trio

    from .node import NodeProcess


class Network:
    """The links between the nodes that were added. ``folder``: for the files of routes.

    Attributes:
        is_torn: A link is cut, frozen or muted.
    """

    def __init__(self, folder: Path) -> None:
        self.is_torn = False
        self._folder = folder
        self._nursery: trio.Nursery | None = None
        self._proxies: dict[tuple[int, int], Proxy] = {}  # by the ports of who connects, and of whom
        self._ports: set[int] = set()

    def open(self, nursery: trio.Nursery) -> None:
        """Lets links be added. They last as long as the nursery."""
        self._nursery = nursery

    def path(self, node: NodeProcess) -> Path:
        """Returns the file of a node's routes."""
        return self._folder / f"{node.name}.routes"

    async def add(self, nodes: list[NodeProcess], new: list[NodeProcess]) -> None:
        """Opens the links between ``nodes`` and those of them that are new, or have new ports.

        Does nothing before ``open``: then nodes reach each other without links.
        """
        if self._nursery is None:
            return
        before = set(self._ports)
        for node in new:
            self._ports.add(node.port)
            for other in before:
                await self._add(node.port, other)
                await self._add(other, node.port)
            before.add(node.port)
        for node in nodes:
            routes = {str(other): proxy.port for (port, other), proxy in self._proxies.items() if port == node.port}
            written = self.path(node).with_suffix(".new")
            written.write_text(json.dumps(routes))
            os.replace(written, self.path(node))

    async def _add(self, port: int, other: int) -> None:
        assert self._nursery is not None
        proxy = self._proxies[port, other] = Proxy((HOST, other))
        await self._nursery.start(proxy.run)

    def _links_of(self, node: NodeProcess) -> list[Proxy]:
        return [proxy for ends, proxy in self._proxies.items() if node.port in ends]

    def cut_off(self, node: NodeProcess) -> None:
        """Cuts every link of a node to the others. Clients reach all nodes."""
        self.is_torn = True
        for proxy in self._links_of(node):
            proxy.cut()

    def cut(self, one: NodeProcess, other: NodeProcess) -> None:
        """Cuts the links between two nodes, both ways. Others reach both."""
        self.is_torn = True
        for ends, proxy in self._proxies.items():
            if set(ends) == {one.port, other.port}:
                proxy.cut()

    def refuse(self, one: NodeProcess, other: NodeProcess) -> None:
        """Cuts the connections that one node makes to another one. Those that the other one makes go on."""
        self.is_torn = True
        self._proxies[one.port, other.port].cut()

    def mute(self, node: NodeProcess, others: list[NodeProcess]) -> None:
        """Lets nothing that a node sends reach the others, which it still hears. No side is told."""
        self.is_torn = True
        for other in others:
            self._proxies[node.port, other.port].mute(there=True)
            self._proxies[other.port, node.port].mute(there=False)

    def freeze(self, node: NodeProcess) -> None:
        """Freezes every link of a node to the others, so that no side is told."""
        self.is_torn = True
        for proxy in self._links_of(node):
            proxy.freeze()

    def heal(self) -> None:
        """Mends every link."""
        self.is_torn = False
        for proxy in self._proxies.values():
            proxy.heal()
