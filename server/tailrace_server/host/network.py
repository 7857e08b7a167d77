"""The network, as an object that the node is given: a simulator hands over one that drops and delays.

`TlsListener` shakes hands before a connection reaches the node. So the node's bounds count greeted TLS only, and the
handshakes have the bound of connections that have not greeted, in number and in time.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import trio

from tailrace.errors import ProtocolError
from tailrace.link.address import Address
from tailrace.trio.listener import TcpListener, listen_tcp
from tailrace.trio.ready_sockets import ready_sockets
from tailrace.trio.tcp import connect_tcp
from tailrace.trio.tls import NotTls, accept_tls, connect_tls
from tailrace.trio.transport import Transport
from tailrace.wire.messages import encode_error
from tailrace_server.config import Limits
from tailrace_server.host.greetings import Greetings
from tailrace_server.host.line_limit import LimitedLog
from tailrace_server.host.tls import NodeTls

log = logging.getLogger("tailrace.server")

# A client whose handshake has failed has this many seconds to read why. Its own bytes are dropped meanwhile.
LINGER_SECONDS = 1.0
_SPEAKS_TLS = "this node speaks TLS: use tailraces:// in the URL"


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

    def __init__(
        self,
        tls: NodeTls | None = None,
        handshake_seconds_max: float = 10.0,
        greetings: Greetings | None = None,
        busy_poll_s: float = 0.0,
    ) -> None:
        """Makes a network.

        Args:
            tls: The certificates, if connections are to speak TLS.
            handshake_seconds_max: The time for a handshake of an accepted connection.
            greetings: Counts these handshakes, together with connections that have not said HELLO yet.
            busy_poll_s: The seconds to poll before sleeping, while lone requests come that close together.
        """
        self._busy_poll_s = busy_poll_s
        self._tls = tls
        self._handshake_seconds_max = handshake_seconds_max
        self._greetings = Greetings(Limits()) if greetings is None else greetings

    async def listen(self, host: str, port: int) -> Listener:
        listener = await listen_tcp(host, port)
        sockets = ready_sockets()
        if sockets is not None:
            sockets.wait_directly(self._busy_poll_s)
        if self._tls is None:
            return listener
        return TlsListener(listener, self._tls, self._handshake_seconds_max, self._greetings)

    async def connect(self, address: Address) -> Transport:
        if self._tls is None:
            return await connect_tcp(address)
        return await connect_tls(connect_tcp, self._tls.connecting, address)


class TlsListener:
    """Accepts connections that speak TLS. Others are told so, and closed."""

    def __init__(self, listener: TcpListener, tls: NodeTls, handshake_seconds_max: float, greetings: Greetings) -> None:
        self._listener = listener
        self._tls = tls
        self._handshake_seconds_max = handshake_seconds_max
        self._greetings = greetings
        self._failed = LimitedLog(log, "connections ended before a handshake")

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    async def serve(self, handler: Callable[[Transport], Awaitable[None]]) -> None:
        await self._listener.serve(partial(self._accept, handler))

    async def aclose(self) -> None:
        await self._listener.aclose()

    async def _accept(self, handler: Callable[[Transport], Awaitable[None]], inner: Transport) -> None:
        secure = await self._shake(inner)
        if secure is None:
            inner.close()
        else:
            await handler(secure)

    async def _shake(self, inner: Transport) -> Transport | None:
        """Returns the connection over TLS; None if the peer shakes no hands, and was told so."""
        scope = trio.CancelScope(deadline=trio.current_time() + self._handshake_seconds_max)
        self._greetings.begin(scope, scope.cancel)
        try:
            with scope:
                return await self._shake_or_tell(inner)
        except BaseException:
            inner.close()
            raise
        finally:
            self._greetings.over(scope)
        self._tell(inner, "its TLS handshake took too long, or too many were under way")
        return None

    def _tell(self, inner: Transport, why: str) -> None:
        host = inner.peer.rpartition(":")[0]
        self._failed.write(trio.current_time(), host, logging.INFO, "connection of %s ends: %s", inner.peer, why)

    async def _shake_or_tell(self, inner: Transport) -> Transport | None:
        try:
            return await accept_tls(inner, self._tls.listening)
        except NotTls:
            self._tell(inner, "it does not speak TLS")
            inner.send(encode_error(ProtocolError(_SPEAKS_TLS)))
            await _linger(inner)
        except ssl.SSLError as error:
            self._tell(inner, f"its TLS handshake has failed: {error.reason or error}")
            await _linger(inner)
        except (OSError, EOFError):
            pass  # the peer is gone
        return None


async def _linger(inner: Transport) -> None:
    """Waits until the peer has read the last bytes and closed: with something unread they would get lost."""
    inner.finish()
    with trio.move_on_after(LINGER_SECONDS):
        try:
            while await inner.receive():
                pass
        except OSError:
            pass
