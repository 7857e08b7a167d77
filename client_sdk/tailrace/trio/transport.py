"""A connection's bytes under trio, as both ends use it: over TCP, TLS, a WebSocket, or in a simulator.

``send`` never waits and is no checkpoint, so an answer can leave from inside a callback, and no cancelled task leaves
half a frame behind. The sender watches ``backlog_bytes`` and stops at a bound of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from tailrace.link.address import Address

if TYPE_CHECKING:
    from tailrace.trio.file_part import FilePart


class Transport(Protocol):
    """A connection, as both ends use it. A test may hand over its own."""

    on_drained: Callable[[], None] | None

    @property
    def backlog_bytes(self) -> int:
        """The bytes that the system has not taken yet."""
        ...

    @property
    def is_broken(self) -> bool:
        """No bytes reach the peer any more: it has gone, or this side has closed."""
        ...

    @property
    def peer(self) -> str:
        """The other side's address, for messages."""
        ...

    def send(self, *buffers: bytes | memoryview) -> None:
        """Sends bytes, or queues them until the peer reads. Never waits; ``receive`` reports a broken connection."""
        ...

    async def receive(self) -> bytes | memoryview:
        """Returns some bytes; ``b""`` at the end. Always a checkpoint. Raises OSError if the connection broke."""
        ...

    async def run(self) -> None:
        """Writes the queue until closed. Calls ``on_drained`` each time that the queue becomes empty."""
        ...

    def finish(self) -> None:
        """Tells the peer that no more bytes follow. Its bytes can still be received. The backlog has to be empty."""
        ...

    def close(self) -> None:
        """Ends the connection at once; ``receive`` and ``run`` return or raise OSError."""
        ...


@runtime_checkable
class PlacingTransport(Transport, Protocol):
    """A Transport that can receive bytes to where they are to stay. Others hand them over as they come."""

    async def receive_into(self, buffers: tuple[memoryview, bytearray]) -> int:
        """Receives some bytes into ``buffers``, one after the other. Returns their count; 0 at the end.

        Always a checkpoint. Raises OSError if the connection broke.
        """
        ...


# Takes received bytes. Returns whether more may come.
Take: TypeAlias = Callable[[bytes | memoryview], bool]


class HandingTransport(Transport, Protocol):
    """A Transport that hands over bytes as they come, without a switch of tasks."""

    async def receive_each(self, take: Take) -> bool:
        """As the function `receive_each`."""
        ...


async def receive_each(transport: Transport, take: Take) -> bool:
    """Hands over the bytes as they come, until ``take`` returns False. Returns False at the end of the bytes.

    Always a checkpoint. ``take`` may run in another task. Raises what ``take`` raises, and OSError if the connection
    broke.
    """
    each = getattr(transport, "receive_each", None)  # to ask whether it is a HandingTransport takes 20 times as long
    return await (receive_in_turns(transport, take) if each is None else each(take))


async def receive_in_turns(transport: Transport, take: Take) -> bool:
    """Does `receive_each` by ``receive``."""
    while data := await transport.receive():
        if not take(data):
            return True
    return False


@runtime_checkable
class FileTransport(Transport, Protocol):
    """A Transport that sends parts of files. They should be in memory."""

    def send_file(self, head: bytes, part: FilePart) -> None:
        """Sends ``head`` and then ``part``, or queues them, as ``send`` does. Closes the part when it has left."""
        ...


# Makes a transport to an address, or raises Unreachable.
Connect: TypeAlias = Callable[[Address], Awaitable[Transport]]
