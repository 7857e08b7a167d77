"""Connects to the nodes that a `Finder` names, one try after the other, and never waits longer than asked."""

from __future__ import annotations

import collections
import errno
import os
import select
import socket
import ssl
import time
from typing import TYPE_CHECKING, TypeAlias

from tailrace.blocking.guard import raise_foreign
from tailrace.blocking.tls_socket import TlsSocket
from tailrace.errors import TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.link.connection import LinkCore

if TYPE_CHECKING:
    from tailrace.blocking.websocket_socket import WebSocketSocket

# A connection with TLS or a WebSocket, or both. It has the methods of a socket that a link uses.
LayeredSocket: TypeAlias = "TlsSocket | WebSocketSocket"

_UNDER_WAY = (0, errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR)


class Dialer:
    """Tries the addresses that the finder names, after its pauses.

    Each try takes `LinkCore.try_seconds` at most. The system looks up names and takes its own time for that.
    """

    def __init__(self, core: LinkCore, tls: ssl.SSLContext | None = None) -> None:
        self._core = core
        self._tls = tls
        self._next_try = 0.0
        self._address: Address | None = None  # of the present try or connection
        # The socket addresses of one name that are still to be tried: "localhost" is ::1 and 127.0.0.1.
        self._candidates: collections.deque[tuple[socket.AddressFamily, tuple[object, ...]]] = collections.deque()
        self._sock: socket.socket | None = None
        self._shaking: LayeredSocket | None = None  # a connection whose handshake is under way
        self._give_up = 0.0

    def step(self, wait_s: float) -> socket.socket | LayeredSocket | None:
        """Returns a connected, non-blocking socket, with TLS if there is a context for it, and the URL's WebSocket.

        None if it takes longer than ``wait_s`` seconds: step again.

        Raises Unreachable if a try has failed, or ProtocolError or Forbidden of TLS or WebSocket; the next step makes
        another one.
        """
        if self._shaking is not None:
            return self._shake(self._shaking, wait_s)
        if self._sock is None:
            if self._address is None:
                self._address, pause_s = self._core.finder.next_try()
                self._next_try = time.monotonic() + pause_s
            pause_s = self._next_try - time.monotonic()
            if pause_s > 0:
                time.sleep(min(pause_s, wait_s))
                return None
            self._sock = self._begin(self._address)
            self._give_up = time.monotonic() + self._core.try_seconds
        poll = select.poll()
        poll.register(self._sock, select.POLLOUT)
        if not poll.poll(wait_s * 1000):
            self._check_time()
            return None
        code = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise self._failed(self._refused(os.strerror(code)))
        sock, self._sock = self._sock, None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._shaking = self._layer(sock)
        except TailraceError as error:
            sock.close()
            raise self._failed(error) from None
        if self._shaking is None:
            self._candidates.clear()
            return sock
        return self._shake(self._shaking, 0.0)

    def _layer(self, sock: socket.socket | LayeredSocket) -> LayeredSocket | None:
        """Returns the next layer around ``sock``; None if it has all."""
        assert self._address is not None, "a try has an address"
        tunnel = self._core.finder.tunnel
        if isinstance(sock, socket.socket) and self._tls is not None:
            return TlsSocket(sock, self._tls, self._address)
        if tunnel is None or not isinstance(sock, socket.socket | TlsSocket):
            return None
        from tailrace.blocking.websocket_socket import WebSocketSocket  # its library is an extra

        return WebSocketSocket(sock, self._address, tunnel)

    def _shake(self, sock: LayeredSocket, wait_s: float) -> LayeredSocket | None:
        """Goes on with a handshake; waits for ``wait_s`` seconds at most."""
        try:
            is_complete = sock.shake()
            if not is_complete and wait_s > 0:
                poll = select.poll()
                poll.register(sock, select.POLLIN | select.POLLOUT if sock.has_unsent else select.POLLIN)
                is_complete = bool(poll.poll(wait_s * 1000)) and sock.shake()
        except TailraceError as error:
            raise_foreign(error)
            raise self._failed(error) from None
        except OSError as error:
            raise_foreign(error)
            raise self._failed(Unreachable(f"the connection to {self._address} broke: {error}")) from None
        if not is_complete:
            self._check_time()
            return None
        self._shaking = self._layer(sock)
        if self._shaking is not None:
            return self._shake(self._shaking, 0.0)
        self._candidates.clear()
        return sock

    def _check_time(self) -> None:
        """Raises Unreachable if the try has taken too long."""
        if time.monotonic() >= self._give_up:
            raise self._failed(self._core.no_answer())

    def begin_anew(self) -> None:
        """Asks the finder for the address of the next try: a connection was lost."""
        self._address = None

    def close(self) -> None:
        """Ends the present try."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._shaking is not None:
            self._shaking.close()
            self._shaking = None

    def _begin(self, address: Address) -> socket.socket:
        if not self._candidates:
            try:
                found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            except OSError as error:
                raise_foreign(error)
                raise self._failed(self._refused(error.strerror or str(error))) from None
            self._candidates.extend((family, where) for family, _, _, _, where in found)
        family, where = self._candidates.popleft()
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # out of descriptors, or a family that this machine does not have
            raise_foreign(error)
            raise self._failed(self._refused(error.strerror or str(error))) from None
        sock.setblocking(False)
        code = sock.connect_ex(where)
        if code not in _UNDER_WAY:
            sock.close()
            raise self._failed(self._refused(os.strerror(code)))
        return sock

    def _refused(self, why: str) -> Unreachable:
        return Unreachable(f"cannot connect to {self._address}: {why}")

    def _failed(self, error: TailraceError) -> TailraceError:
        self.close()
        if not self._candidates:
            self.begin_anew()
            self._core.finder.failed(error)
        return error
