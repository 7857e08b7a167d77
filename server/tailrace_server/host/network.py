"""The network, as an object that the node is given: a simulator hands over one that drops and delays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from tailrace.link.address import Address
from tailrace.trio.listener import listen_tcp
from tailrace.trio.transport import Transport, connect_tcp


class Listener(Protocol):
    """An address that accepts connections."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, the real one if port 0 was asked for."""
        ...

    async def serve(self, handler: Callable[[Transport], Awaitable[None]]) -> None:
        """Runs ``handler`` in a task of its own for each connection, until cancelled."""
        ...

    async def aclose(self) -> None:
        """Stops listening, and gives the address back."""
        ...


class Network(Protocol):
    """Listens for a node, and connects it to others."""

    async def listen(self, host: str, port: int) -> Listener:
        """Listens at ``host``:``port``. Raises OSError if the address cannot be used."""
        ...

    async def connect(self, address: Address) -> Transport:
        """Connects to another node. Raises Unreachable; the time-out is the caller's cancel scope."""
        ...


class TcpNetwork:
    """The machine's TCP."""

    async def listen(self, host: str, port: int) -> Listener:
        return await listen_tcp(host, port)

    async def connect(self, address: Address) -> Transport:
        return await connect_tcp(address)
