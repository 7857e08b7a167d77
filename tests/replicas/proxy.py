"""A network link that can be cut, frozen and healed: a relay on loopback in front of one address.

cut      every connection is reset, and so is each new one
freeze   nothing passes and nothing is closed: what is silence to both sides
heal     what a freeze has held passes, and new connections get through
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RECEIVE_BYTES = 64 * 1024
# With it a close is a reset: who only sees an end of the stream may think that the peer has gone on purpose.
RESET = struct.pack("ii", 1, 0)
HOST = "127.0.0.1"


class Proxy:
    """A relay to ``target``; listens at ``port`` while ``run`` runs. It holds at most 64 KiB for each direction."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = 0
        self.connections = 0  # so far
        self.resets = 0
        self._is_cut = False
        self._thawed = trio.Event()
        self._thawed.set()
        self._open: set[_Pair] = set()

    def cut(self) -> None:
        """Resets what there is and what comes."""
        self._is_cut = True
        self._thawed.set()
        for pair in list(self._open):
            self.resets += 1
            pair.reset()

    def freeze(self) -> None:
        """Nothing passes any more, not even the start of a connection."""
        self._is_cut = False
        if self._thawed.is_set():
            self._thawed = trio.Event()

    def heal(self) -> None:
        """All passes again."""
        self._is_cut = False
        self._thawed.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Relays until it is cancelled, and resets what is left."""
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept, listeners[0], nursery)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                for pair in list(self._open):
                    pair.reset()

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:  # one connection's trouble, or no descriptors for a moment
                    if error.errno in (errno.EMFILE, errno.ENFILE):
                        await trio.sleep(0.05)
                    continue
                nursery.start_soon(self._relay, stream)

    async def _relay(self, client: trio.SocketStream) -> None:
        pair = _Pair(client)
        self._open.add(pair)
        self.connections += 1
        try:
            with pair.scope:
                if self._is_cut:
                    pair.reset()
                    return
                await self._thawed.wait()
                try:
                    pair.server = await trio.open_tcp_stream(*self.target)
                except OSError:
                    return
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._forward, pair, pair.client, pair.server)
                    nursery.start_soon(self._forward, pair, pair.server, pair.client)
        finally:
            self._open.discard(pair)
            pair.close()

    async def _forward(self, pair: _Pair, source: trio.SocketStream, sink: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(RECEIVE_BYTES):
                await self._thawed.wait()
                await sink.send_all(data)
            await self._thawed.wait()
            await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pair.reset()


class _Pair:
    """The two sides of a connection."""

    def __init__(self, client: trio.SocketStream) -> None:
        self.client = client
        self.server: trio.SocketStream | None = None
        self.scope = trio.CancelScope()

    def reset(self) -> None:
        """Ends it on both sides as a broken network does."""
        for stream in (self.client, self.server):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.scope.cancel()

    def close(self) -> None:
        for stream in (self.client, self.server):
            if stream is not None:
                stream.socket.close()


@contextlib.asynccontextmanager
async def open_proxy(target: tuple[str, int]) -> AsyncIterator[Proxy]:
    """A relay that runs while the body does."""
    proxy = Proxy(target)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
