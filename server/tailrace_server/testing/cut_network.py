"""A network that a test can cut: connections break, and new ones end at once, until it is healed.

`CutNetwork` has the connections by frames, `CutWeb` those of HTTP and WebSocket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from tailrace.errors import Unreachable
from tailrace.link.address import Address
from tailrace.trio.transport import Transport
from tailrace_server.host.network import Listener, Network
from tailrace_server.serving.listeners import ListenerHandlers, WebStream


class CutNetwork:
    """The network ``inner``, of clients and of the other members, with a switch."""

    def __init__(self, inner: Network) -> None:
        self._inner = inner
        self._is_cut = False
        self._open: set[Transport] = set()

    def cut(self) -> None:
        """Closes every connection, and each new one, until `heal`."""
        self._is_cut = True
        for transport in list(self._open):
            transport.close()
        self._open.clear()

    def heal(self) -> None:
        """Lets connections be made again."""
        self._is_cut = False

    async def listen(self, host: str, port: int) -> Listener:
        return _CutListener(self, await self._inner.listen(host, port))

    async def connect(self, address: Address) -> Transport:
        transport = None if self._is_cut else await self._inner.connect(address)
        if transport is not None and self._is_cut:
            transport.close()
        if transport is None or self._is_cut:
            raise Unreachable(f"{address} cannot be reached: the test has cut this node off")
        self._add(transport)
        return transport

    async def accepted(self, handler: Callable[[Transport], Awaitable[None]], transport: Transport) -> None:
        """Handles a connection that was accepted, unless the network is cut."""
        if self._is_cut:
            transport.close()
            return
        self._add(transport)
        try:
            await handler(transport)
        finally:
            self._open.discard(transport)

    def _add(self, transport: Transport) -> None:
        # A connection to another member has no end that is told here.
        self._open = {other for other in self._open if not other.is_broken}
        self._open.add(transport)


class _CutListener:
    def __init__(self, network: CutNetwork, inner: Listener) -> None:
        self._network = network
        self._inner = inner

    @property
    def address(self) -> tuple[str, int]:
        return self._inner.address

    async def serve(self, handler: Callable[[Transport], Awaitable[None]]) -> None:
        await self._inner.serve(partial(self._network.accepted, handler))

    async def aclose(self) -> None:
        await self._inner.aclose()


class CutWeb:
    """The connections of HTTP and WebSocket, with a switch."""

    def __init__(self) -> None:
        self._is_cut = False
        self._open: set[trio.CancelScope] = set()

    def cut(self) -> None:
        """Ends every connection, and each new one, until `heal`."""
        self._is_cut = True
        for scope in self._open:
            scope.cancel()

    def heal(self) -> None:
        """Lets connections be made again."""
        self._is_cut = False

    def behind(self, listener: ListenerHandlers) -> ListenerHandlers:
        """Returns the functions of a listener whose connections this can cut."""

        async def handle(stream: WebStream, identified: Callable[[], None]) -> None:
            if self._is_cut:
                return  # the listener closes its socket
            with trio.CancelScope() as scope:
                self._open.add(scope)
                try:
                    await listener.handle(stream, identified)
                finally:
                    self._open.discard(scope)

        return listener._replace(handle=handle)
