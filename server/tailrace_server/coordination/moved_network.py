"""A network that finds members by their names: a member's name stays, and its address may change."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.link.address import Address
from tailrace.trio.transport import Transport
from tailrace_server.host.network import Listener, Network


class MovedNetwork:
    """Connects to the present address of the member that an address names."""

    def __init__(self, network: Network, address_of: Callable[[Address], Address]) -> None:
        """``address_of`` returns the present address of a member, and every other address as it is."""
        self._network = network
        self._address_of = address_of

    async def listen(self, host: str, port: int) -> Listener:
        """Listens at ``host``:``port``, as `Network.listen`."""
        return await self._network.listen(host, port)

    async def connect(self, address: Address) -> Transport:
        """Connects to the member ``address``, as `Network.connect`."""
        return await self._network.connect(self._address_of(address))
