"""A WebSocket that carries frames, as a machine of bytes: the client's side. It knows no socket, and never waits.

The payloads of binary messages, one after the other, are the bytes of a connection; where a message ends means nothing.
So no message is kept whole, and its length needs no bound. No extension is offered, hence there is no compression.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

try:
    from wsproto import ConnectionType, WSConnection
    from wsproto.events import (
        AcceptConnection,
        BytesMessage,
        CloseConnection,
        Event,
        Ping,
        Pong,
        RejectConnection,
        RejectData,
        Request,
    )
    from wsproto.utilities import LocalProtocolError, RemoteProtocolError
except ImportError:
    raise ImportError("URLs that begin with ws:// or wss:// need wsproto: pip install 'tailrace[ws]'") from None

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.websocket.failures import closed, no_http, no_tunnel, refused

SUBPROTOCOL = "tailrace.frames.v1"
# Behind the path of the URL.
PATH = "/frames"
# A node refuses messages above 1 MiB. Several of this size are in flight to it, and each is masked in one call.
MESSAGE_BYTES = 256 * 1024
# The most bytes of a refusal that are kept.
_BODY_BYTES_MAX = 4 * 1024
_HTTP = b"HTTP/"
# The close codes that say nothing but the end: normal, going away, none.
_PLAIN_CODES = (1000, 1001, 1005)


class WebSocketEngine:
    """The client's side of a WebSocket. `take` returns what is to be sent, after each other call."""

    def __init__(self, address: Address, tunnel: str) -> None:
        """``tunnel``: the path of the URL, without a slash at its end."""
        self._where = str(address)
        self._target = tunnel + PATH
        self._ws = WSConnection(ConnectionType.CLIENT)
        self._out: list[bytes] = [
            bytes(self._ws.send(Request(host=self._where, target=self._target, subprotocols=[SUBPROTOCOL])))
        ]
        self._pong: bytes | None = None  # the answer to the latest ping
        self._first = b""  # the first bytes of the answer, while they are too few to be told from other protocols
        self._has_heard = False
        self._refusal: RejectConnection | None = None
        self._body = b""
        self._is_open = False
        self._received: list[bytes] = []
        self.is_ended = False  # the peer has said that no more bytes follow
        self.reason = ""  # why, if it was not simply the end

    def feed(self, data: bytes) -> None:
        """Takes received bytes. Raises TailraceError if the WebSocket is refused."""
        if not self._has_heard:
            data = self._first + data
            if not data.startswith(_HTTP[: len(data)]):
                raise no_http(self._where)
            self._first = data
            if len(data) < len(_HTTP):
                return
            self._has_heard = True
        if self.is_ended:
            return
        try:
            self._ws.receive_data(data)
            for event in self._ws.events():
                self._handle(event)
        except (RemoteProtocolError, LocalProtocolError) as error:
            if not self._is_open:
                raise no_tunnel(self._where, str(error)) from None
            self._fail(str(error))

    def fed_end(self) -> None:
        """Notes the end of the connection. Raises TailraceError if the WebSocket was not open yet."""
        if self._refusal is not None:
            raise self._refused(self._refusal)
        if not self._is_open:
            raise closed(self._where)
        self.is_ended = True

    @property
    def is_open(self) -> bool:
        """The server has accepted the WebSocket."""
        return self._is_open

    def take(self) -> list[bytes]:
        """Returns the bytes that are to be sent."""
        out, self._out = self._out, []
        if self._pong is not None:
            with contextlib.suppress(LocalProtocolError):  # it is closed
                out.append(bytes(self._ws.send(Pong(self._pong))))
            self._pong = None
        return out

    def received(self) -> bytes:
        """Returns the bytes that the frames are in; ``b""`` if there are none yet."""
        found, self._received = self._received, []
        return found[0] if len(found) == 1 else b"".join(found)

    def send(self, buffers: Iterable[bytes | memoryview]) -> None:
        """Puts bytes into messages, for `take`."""
        pieces: list[bytes | memoryview] = []
        room = MESSAGE_BYTES
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                pieces.append(view[:room])
                view = view[room:]
                room -= len(pieces[-1])
                if not room:
                    self._message(pieces)
                    pieces, room = [], MESSAGE_BYTES
        if pieces:
            self._message(pieces)

    def _message(self, pieces: list[bytes | memoryview]) -> None:
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        with contextlib.suppress(LocalProtocolError):  # it is closed, and the next read tells
            self._out.append(bytes(self._ws.send(BytesMessage(data))))  # type: ignore[arg-type]

    def end(self) -> None:
        """Tells the peer that no more bytes follow, for `take`."""
        with contextlib.suppress(LocalProtocolError):
            self._out.append(bytes(self._ws.send(CloseConnection(1000))))

    def _handle(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            self._received.append(bytes(event.data))
        elif isinstance(event, Ping):
            self._pong = bytes(event.payload)
        elif isinstance(event, Pong):
            pass
        elif isinstance(event, CloseConnection):
            self.is_ended = True
            if event.code not in _PLAIN_CODES:
                self.reason = f"{int(event.code)} {event.reason or ''}".strip()
            with contextlib.suppress(LocalProtocolError):
                self._out.append(bytes(self._ws.send(event.response())))
        elif isinstance(event, AcceptConnection):
            if event.subprotocol != SUBPROTOCOL:
                raise no_tunnel(self._where, f"it does not know the subprotocol {SUBPROTOCOL}")
            self._is_open = True
        elif isinstance(event, RejectConnection):
            self._refusal = event
            if not event.has_body:
                raise self._refused(event)
        elif isinstance(event, RejectData):
            self._body += event.data[: _BODY_BYTES_MAX - len(self._body)]
            if self._refusal is not None and (event.body_finished or len(self._body) >= _BODY_BYTES_MAX):
                raise self._refused(self._refusal)
        else:
            self._fail("it has sent a text message")

    def _fail(self, why: str) -> None:
        self.is_ended = True
        self.reason = why

    def _refused(self, event: RejectConnection) -> TailraceError:
        locations = [value for name, value in event.headers if name.lower() == b"location"]
        location = locations[0].decode("latin-1") if locations else ""
        return refused(self._where, self._target, event.status_code, location, self._body)
