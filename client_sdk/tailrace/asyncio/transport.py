"""A connection's bytes under asyncio: a protocol of its event loop, which may also be uvloop.

``send`` never waits, and no task is woken for bytes that a session can handle at once: the loop hands them over in
``data_received``. TLS is that of the loop.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias, cast

from tailrace.link.address import Address

# The bytes that wait for `Transport.receive` before the loop stops reading: as many as one read on trio brings.
WAITING_BYTES_MAX = 1024 * 1024

# Takes received bytes.
Take: TypeAlias = Callable[[bytes], None]


class Transport(asyncio.Protocol):
    """A connection that `opening` makes. Its owner calls `close`.

    Attributes:
        reads: The number of times that bytes have come.
        is_paused: The loop does not read, because the bytes that have come wait for `receive`.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._transport: asyncio.Transport
        self._take: Take | None = None  # while a task is in ``receive_each``
        self._waiting: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._has_ended = False
        self._is_closed = False
        self._lost = asyncio.Event()
        self.reads = 0
        self.is_paused = False

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the loop's side of the connection."""
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is none by its class

    def data_received(self, data: bytes) -> None:
        """Hands bytes over, or keeps them for `receive`."""
        self.reads += 1
        self._received(data)

    def eof_received(self) -> None:
        """Notes the end of the bytes. The loop closes the connection."""
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes the end of the connection."""
        if isinstance(exc, ssl.SSLError):
            from tailrace.tls.failures import explain

            exc = explain(exc, str(self._address), is_shaken=True)
        self._end(exc)
        self._lost.set()

    # Sending

    def send(self, *buffers: bytes | memoryview) -> None:
        """Sends bytes, or queues them until the peer reads. Never waits; `receive` reports a broken connection."""
        if self._is_closed or self._transport.is_closing():
            return
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    # Receiving

    def _received(self, data: bytes) -> None:
        if self._is_closed or self._has_ended:
            return
        if self._take is not None:
            try:
                self._take(data)
            except Exception as error:  # a bug in ``take`` is its caller's, too
                self._end(error)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes > WAITING_BYTES_MAX and not self.is_paused:
            self.is_paused = True
            self._transport.pause_reading()
        self._wake()

    def _end(self, error: Exception | None) -> None:
        """Notes that no more bytes come, and why; the first reason counts."""
        if not self._has_ended:
            self._has_ended, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        """Waits for bytes or for the end. Raises RuntimeError if another task does."""
        if self._waiter is not None and not self._waiter.done():
            raise RuntimeError(
                "another task reads this stream: its events have an order, so one task at a time may read"
            )
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        await waiter

    async def receive(self) -> bytes:
        """Returns some bytes; ``b""`` at the end. Raises how the connection broke. A cancelled call loses no bytes."""
        while not self._waiting:
            if self._has_ended:
                self._check()
                return b""
            await self._wait()
        data = self._waiting.popleft()
        self._waiting_bytes -= len(data)
        if self.is_paused and not self._waiting:
            self.is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return data

    async def receive_each(self, take: Take) -> None:
        """Hands over the bytes as they come, until their end. Raises what ``take`` raises, or how it broke."""
        while self._waiting:
            take(await self.receive())
        self._take = take
        try:
            while not self._has_ended:
                await self._wait()
        finally:
            self._take = None
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    # Ending

    def close(self) -> None:
        """Ends the connection at once, with what waits in it."""
        if self._is_closed:
            return
        self._is_closed = True
        self._waiting.clear()
        self._end(None)
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Waits until the socket is closed, after `close`."""
        await self._lost.wait()


# Makes a transport to an address, or raises Unreachable.
Connect: TypeAlias = Callable[[Address], Awaitable[Transport]]


@contextlib.asynccontextmanager
async def closing(transport: Transport) -> AsyncIterator[None]:
    """Closes ``transport`` after the body."""
    try:
        yield
    finally:
        transport.close()
        await transport.wait_closed()
