"""A connection between two parts of one process: both ends of a transport, and no socket.

The WebSocket listener follows feeds with the SDK's own consumer. So it resumes, rolls back and checks its input as
every client does. Over the node's listening address that would cost two passages through the kernel for each block, a
descriptor, and knowledge of how the node is to be reached (a wildcard address, later TLS and a token).
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import trio

from tailrace.tls.engine import PeerIdentity


class LoopbackTransport:
    """A ``tailrace.trio.tls.SecureTransport``: what one end sends, the other one receives, by reference."""

    def __init__(self, peer: str, peer_identity: PeerIdentity | None = None) -> None:
        self._peer = peer
        self.peer_identity = peer_identity
        self.handshake_seconds = 0.0
        self._other: LoopbackTransport = self
        self._inbox: collections.deque[bytes | memoryview] = collections.deque()
        self._arrived = trio.Event()
        self._taken = trio.Event()
        self._closed = False
        self.backlog_bytes = 0
        self.on_drained: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def is_broken(self) -> bool:
        return self._closed or self._other._closed

    def send(self, *buffers: bytes | memoryview) -> None:
        if self.is_broken:
            return
        self._other._inbox.extend(buffers)
        self.backlog_bytes += sum(map(len, buffers))
        self._other._arrived.set()

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._inbox:
            if self.is_broken:
                return b""
            self._arrived = trio.Event()
            await self._arrived.wait()
        data = b"".join(self._inbox)
        self._inbox.clear()
        self._other.backlog_bytes = 0
        self._other._taken.set()
        await trio.lowlevel.cancel_shielded_checkpoint()
        return data

    async def run(self) -> None:
        while not self._closed:
            self._taken = trio.Event()
            if not self.backlog_bytes and self.on_drained is not None:
                self.on_drained()
            await self._taken.wait()

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        """Closes this end. The other end can still receive the bytes that were sent before."""
        self._closed = True
        self._inbox.clear()
        self._other.backlog_bytes = 0
        for end in (self, self._other):
            end._arrived.set()
            end._taken.set()


def loopback(
    client: str, server: str, certificate: PeerIdentity | None = None
) -> tuple[LoopbackTransport, LoopbackTransport]:
    """Both ends of a connection: the client's, whose peer is ``server``, and the server's, whose peer is ``client``.

    ``certificate``: that of the client, as the server's end shows it.
    """
    ends = LoopbackTransport(server), LoopbackTransport(client, certificate)
    ends[0]._other, ends[1]._other = ends[1], ends[0]
    return ends
