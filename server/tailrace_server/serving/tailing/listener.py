"""The WebSocket listener: handshakes, and the sessions that are open."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Protocol

import trio
from trio_websocket import ConnectionClosed, WebSocketRequest

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.tls.engine import PeerIdentity
from tailrace.trio.transport import Transport
from tailrace_server.config import Limits
from tailrace_server.serving.bearer import token_of_websocket
from tailrace_server.serving.hosts import host_allowed, refusal
from tailrace_server.serving.listeners import ListenerHandlers, WebStream, listen
from tailrace_server.serving.secure_stream import certificate_of
from tailrace_server.serving.tailing.bounded_websocket import BoundedWebSocket, request_of
from tailrace_server.serving.tailing.loopback import loopback
from tailrace_server.serving.tailing.request import announces_token, origin_allowed
from tailrace_server.serving.tailing.session import CLOSE_SECONDS_MAX, TailSession
from tailrace_server.serving.tailing.sharing import Sharing
from tailrace_server.serving.tailing.tunnel import is_tunnel, serve_tunnel

log = logging.getLogger("tailrace.ws")

CONNECTIONS_MAX = Limits().websocket_connections_max
HANDSHAKE_SECONDS_MAX = 10.0
_AUTHORIZATION = b"authorization"


class TailedNode(Protocol):
    """The parts of a node that the listener uses, besides the one that serves connections."""

    def identify(self, token: str | None, peer: str, certificate: PeerIdentity | None = None) -> object:
        """As ``Node.identify``."""
        ...

    def pause_s(self, peer: str, token: str | None) -> float:
        """As ``Node.pause_s``."""
        ...

    async def drain(self) -> None:
        """As ``Node.drain``."""
        ...


# The one message of a page: positions of some ten thousand partitions. A message of frames ends anywhere.
MESSAGE_BYTES_MAX = 1024 * 1024
RECEIVE_BYTES = 64 * 1024


@contextlib.asynccontextmanager
async def ws_listener(
    handle: Callable[[Transport], Awaitable[None]],
    node: TailedNode,
    address: tuple[str, int] | None,
    origins: Collection[str] = (),
    hosts: Collection[str] = (),
    tls: Callable[[], ssl.SSLContext] | None = None,
    connections_max: int = CONNECTIONS_MAX,
) -> AsyncIterator[tuple[str, int] | None]:
    """Tails feeds, and takes frames, over WebSocket at ``address`` while the body runs; gives the real address.

    Args:
        handle: ``Node.handle``, which serves a connection to the node.
        node: The node. On leaving it is drained if frames come through WebSockets: their streams end as others do.
        address: Host and port; None: nothing is opened.
        origins: Those of the pages that may connect besides the ones that always may (``origin_allowed``).
        hosts: The names that the node may be reached by, besides its addresses.
        tls: Gives the present context, if the listener speaks TLS.
        connections_max: The WebSockets that are open at a time. Each may cost CLIENT_BYTES_MAX if its page is slow.

    Raises OSError if the address cannot be used.
    """
    if address is None:
        yield None
        return
    async with trio.open_nursery() as nursery:

        def connect(peer: str, certificate: PeerIdentity | None) -> Transport:
            client, server = loopback(peer, "loopback", certificate)
            nursery.start_soon(handle, server)
            return client

        sessions = _Sessions(address[0], frozenset(origins), frozenset(hosts), connect, node, handle, Sharing(nursery))
        async with listen(
            ListenerHandlers("ws", connections_max, sessions.handle, sessions.drain, tls), address
        ) as opened:
            yield opened
        nursery.cancel_scope.cancel()


class _Sessions:
    def __init__(
        self,
        listen_host: str,
        origins: Collection[str],
        hosts: Collection[str],
        connect: Callable[[str, PeerIdentity | None], Transport],
        node: TailedNode,
        handle: Callable[[Transport], Awaitable[None]],
        sharing: Sharing,
    ) -> None:
        self._sharing = sharing
        self._node = node
        self._handle = handle
        self._listen_host = listen_host
        self._origins = origins
        self._hosts = hosts
        self._connect = connect
        # More threads would take the interpreter from the loop, each for as long as a turn.
        self._parsing = trio.CapacityLimiter(1)
        self._open: set[TailSession] = set()
        self._tunnels = 0  # those that are open
        self._all_closed = trio.Event()

    async def handle(self, stream: WebStream, identified: Callable[[], None]) -> None:
        """Serves one WebSocket to its end. ``identified`` is called once its client has shown that it has rights."""
        local, peer = stream.socket.getsockname(), stream.socket.getpeername()
        try:
            async with trio.open_nursery() as nursery:
                watched = _Watched(stream)
                ws = BoundedWebSocket(watched, receive_buffer_size=RECEIVE_BYTES)

                def known() -> None:
                    identified()
                    ws.bound(MESSAGE_BYTES_MAX)
                    ws.go_on()

                request = await _handshake(ws, watched, nursery)
                if request is None:
                    pass  # no handshake, so no error can be sent
                elif not host_allowed(_host(request), self._hosts):
                    await request.reject(421, body=refusal(_host(request)).encode())
                elif not origin_allowed(_origin(request), local[0], self._listen_host, self._origins):
                    await _turn_away(request)
                elif is_tunnel(request):  # its HELLO brings the token
                    await self._serve_tunnel(request, str(Address(*peer[:2])), certificate_of(stream), known)
                elif _token(request) is None and announces_token(request.path):
                    ws.stop_after_one()
                    await self._run_once_identified(request, str(Address(*peer[:2])), certificate_of(stream), known)
                else:
                    await self._identify_and_run(request, str(Address(*peer[:2])), certificate_of(stream), known)
                nursery.cancel_scope.cancel()
        except* ConnectionClosed:
            pass  # the library's reader has found that the client is gone

    async def _serve_tunnel(
        self, request: WebSocketRequest, peer: str, certificate: PeerIdentity | None, known: Callable[[], None]
    ) -> None:
        self._tunnels += 1
        try:
            await serve_tunnel(request, peer, self._handle, certificate, known)
        finally:
            self._tunnels -= 1

    async def _identify_and_run(
        self, request: WebSocketRequest, peer: str, certificate: PeerIdentity | None, known: Callable[[], None]
    ) -> None:
        """Serves a client by the token of its handshake, or by its certificate."""
        token = _token(request)
        try:
            self._node.identify(token, peer, certificate)
        except TailraceError as error:
            await trio.sleep(self._node.pause_s(peer, token))
            await request.reject(401, body=f"{error}\n".encode())
        else:
            known()
            await self._run(self._session(request, peer, certificate, token))

    async def _run_once_identified(
        self, request: WebSocketRequest, peer: str, certificate: PeerIdentity | None, known: Callable[[], None]
    ) -> None:
        """Serves a client whose first message has its token."""

        async def identify(token: str) -> None:
            try:
                self._node.identify(token, peer, certificate)
            except TailraceError:
                await trio.sleep(self._node.pause_s(peer, token))
                raise
            known()

        await self._run(self._session(request, peer, certificate, None, identify))

    def _session(
        self,
        request: WebSocketRequest,
        peer: str,
        certificate: PeerIdentity | None,
        token: str | None,
        identify: Callable[[str], Awaitable[None]] | None = None,
    ) -> TailSession:
        async def connect(_: Address) -> Transport:
            return self._connect(peer, certificate)

        return TailSession(request, peer, connect, self._parsing, token, identify, certificate, self._sharing)

    async def _run(self, session: TailSession) -> None:
        self._open.add(session)
        try:
            await session.run()
        except Exception:
            # A bug of ours: whatever a client can cause stays in the session.
            log.exception("a WebSocket was ended by an internal error")
        finally:
            self._open.discard(session)
            if not self._open:
                self._all_closed.set()

    async def drain(self) -> None:
        """Ends every session with a close frame, and the streams of frames with the reason why.

        Returns when that was sent, or after the time that a client has to take it.
        """
        self._all_closed = trio.Event()
        for session in self._open:
            session.stop()
        if self._open:
            with trio.move_on_after(2 * CLOSE_SECONDS_MAX):
                await self._all_closed.wait()
        if self._tunnels:
            await self._node.drain()


async def _handshake(ws: BoundedWebSocket, stream: _Watched, nursery: trio.Nursery) -> WebSocketRequest | None:
    """Returns the request of a client; None if it does not ask for a WebSocket, or takes too long."""
    with trio.move_on_after(HANDSHAKE_SECONDS_MAX) as stream.ends:
        return await request_of(ws, nursery)
    return None


class _Watched(trio.abc.Stream):
    """A stream that cancels ``ends`` when it ends: the library would wait on for a request that cannot come."""

    def __init__(self, stream: WebStream) -> None:
        self._stream = stream
        self.ends = trio.CancelScope()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError:
            self.ends.cancel()
            raise
        if not data:
            self.ends.cancel()
        return data

    async def aclose(self) -> None:
        self.ends.cancel()
        await self._stream.aclose()


def _token(request: WebSocketRequest) -> str | None:
    """Returns the token of a handshake."""
    authorizations = [value.decode("latin-1") for name, value in request.headers if name.lower() == _AUTHORIZATION]
    return token_of_websocket(authorizations, request.proposed_subprotocols)


def _origin(request: WebSocketRequest) -> str | None:
    values = [value for name, value in request.headers if name.lower() == b"origin"]
    return values[0].decode("latin-1") if values else None


def _host(request: WebSocketRequest) -> str:
    host: str = request._event.host  # it has no name of its own for this header
    return host


async def _turn_away(request: WebSocketRequest) -> None:
    body = (
        f"pages of {_origin(request)} may not read the feeds of this node; "
        "serve --ws-origin names the origins that may\n"
    )
    await request.reject(403, body=body.encode("latin-1", "replace"))
