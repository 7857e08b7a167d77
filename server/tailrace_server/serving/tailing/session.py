"""One WebSocket, from its handshake to its end.

Nothing is queued: a message is made when the one before it has gone into the socket, the consumer grants the node more
room only for handled blocks, and the node sends it no more than a window and a block. So a page that reads slowly
costs a block as it came and decompressed, a chunk of a segment that is no longer than the window, and a message:
CLIENT_BYTES_MAX. A page that shares a hub costs less.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import trio
from trio_websocket import ConnectionClosed

from tailrace.errors import TailraceError
from tailrace.tls.engine import PeerIdentity
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.stream import Stream
from tailrace.trio.transport import Connect
from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.tailing.bounded_websocket import BoundedWebSocket
from tailrace_server.serving.tailing.messages import GOING_AWAY, INTERNAL_ERROR, close_of, encode_failure
from tailrace_server.serving.tailing.request import (
    IN_MESSAGE,
    TailRequest,
    choose_subprotocol,
    parse_first_message,
    parse_target,
    parse_token_message,
)
from tailrace_server.serving.tailing.sharing import Shared, Sharing
from tailrace_server.serving.tailing.streams import open_stream
from tailrace_server.serving.tailing.tail import Since, Tail
from tailrace_server.serving.tailing.ticks import Start

# A first message that is longer is parsed by a thread: this one takes some 5 ms.
PARSED_HERE_BYTES_MAX = 4 * 1024
# The memory that one page costs if no block is longer than the SDK makes them (docs/formats/websocket.md).
CLIENT_BYTES_MAX = 2 * 1024 * 1024
# A page that takes no message for this time is dropped; it can resume from its positions.
SEND_SECONDS_MAX = 30.0
# The time for the first message, if since=message has announced one.
FIRST_MESSAGE_SECONDS_MAX = 10.0
# Pings find peers that vanished, and keep proxies from closing an idle connection. A pong comes after all messages in
# flight to a slow page, so it may take as long as a few messages.
PING_INTERVAL_SECONDS = 20.0
PONG_SECONDS_MAX = 60.0
# The closing handshake, and when the node stops the message before it; then the socket is closed, whatever comes.
CLOSE_SECONDS_MAX = 0.4

assert PONG_SECONDS_MAX >= 2 * SEND_SECONDS_MAX, "a page that is slow but permitted must not be taken for dead"


class TooSlow(TailraceError):
    """The client takes nothing any more, so it cannot be told either."""


class Page(Protocol):
    """An open WebSocket. Its methods raise ConnectionClosed if the client has gone."""

    async def get_message(self) -> str | bytes:
        """Returns the next message."""

    async def send_message(self, message: str) -> None:
        """Sends a message; returns when the socket has it."""

    async def ping(self) -> None:
        """Returns when the client has answered a ping."""

    async def aclose(self, code: int, reason: str) -> None:
        """Closes it."""


class Handshake(Protocol):
    """A request for a WebSocket, by trio_websocket or by the HTTP listener."""

    @property
    def path(self) -> str:
        """The path and the query."""

    @property
    def proposed_subprotocols(self) -> tuple[str, ...]:
        """The subprotocols that the client offers."""

    async def accept(self, *, subprotocol: str | None = None) -> Page:
        """Opens the WebSocket."""

    async def reject(self, status_code: int, *, body: bytes) -> None:
        """Refuses it."""


class TailSession:
    """A WebSocket of a page that may have one. ``connect`` gives a transport to the node, which checks ``token``."""

    def __init__(
        self,
        request: Handshake,
        peer: str,
        connect: Connect,
        parsing: trio.CapacityLimiter,
        token: str | None = None,
        identify: Callable[[str], Awaitable[None]] | None = None,
        certificate: PeerIdentity | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        """``identify`` checks the token of a message; None if the client has been identified.

        ``certificate``: that which ``connect`` shows. ``sharing``: the tails with which this one may share a stream.
        """
        self._request = request
        self._parsing = parsing  # of long positions, shared by all pages
        self._peer = peer
        self._connect = connect
        self._token = token
        self._identify = identify
        self._certificate = certificate
        self._sharing = sharing
        self._scope = trio.CancelScope()
        self._sending = trio.CancelScope()
        self._stopping = False

    def stop(self) -> None:
        """Ends the session, with a word to the client: the node is about to stop."""
        self._stopping = True
        self._scope.cancel()
        self._sending.deadline = min(self._sending.deadline, trio.current_time() + CLOSE_SECONDS_MAX)

    async def run(self) -> None:
        """Serves the client to the end. No action of the client raises an error; the caller closes the socket."""
        try:
            ws = await self._accept()
            if ws is not None:
                await self._serve(ws)
        except (ConnectionClosed, TooSlow):
            return

    async def _accept(self) -> Page | None:
        try:
            subprotocol = choose_subprotocol(self._request.proposed_subprotocols)
        except BadRequest as error:
            await self._request.reject(400, body=f"{error}\n".encode())
            return None
        return await self._request.accept(subprotocol=subprotocol)

    async def _serve(self, ws: Page) -> None:
        code, reason = INTERNAL_ERROR, "internal error"
        try:
            with self._scope:
                code, reason = await self._follow_or_explain(ws)
            if self._stopping:
                code, reason = GOING_AWAY, "the node is stopping"
        finally:
            with trio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
                await ws.aclose(code, reason)

    async def _follow_or_explain(self, ws: Page) -> tuple[int, str]:
        """Follows the feed until something ends it; tells the client, and gives code and reason to close with."""
        try:
            request = parse_target(self._request.path)
            if request.token_in_message:
                self._token = await self._token_of_message(ws)
            since = await self._first_message(ws) if request.since == IN_MESSAGE else request.since
            await self._follow(ws, request, since)
        except TooSlow:
            raise
        except TailraceError as error:
            await self._send(ws, encode_failure(error))
            return close_of(error)
        raise AssertionError("a stream that has no end has ended, and without an error")

    async def _token_of_message(self, ws: Page) -> str:
        """Returns the token that the client's first message has, if it counts. Raises BadRequest, Forbidden."""
        if self._token is not None:
            raise BadRequest("token=message announces a message with the token, and the handshake has one as well")
        message = None
        with trio.move_on_after(FIRST_MESSAGE_SECONDS_MAX):
            message = await ws.get_message()
        if message is None:
            raise BadRequest(f"token=message announces a token, and none came within {FIRST_MESSAGE_SECONDS_MAX:g} s")
        token = parse_token_message(message)
        if self._identify is not None:
            await self._identify(token)
        return token

    async def _first_message(self, ws: Page) -> Since:
        """Returns the start that the client's first message names. Raises BadRequest, BadPosition.

        Positions of a megabyte take 2 s to parse: a thread does it, one at a time for all pages. A cancellation does
        not wait for it.
        """
        message = None
        with trio.move_on_after(FIRST_MESSAGE_SECONDS_MAX):
            message = await ws.get_message()
        if message is None:
            raise BadRequest(
                f"since=message announces a first message, and none came within {FIRST_MESSAGE_SECONDS_MAX:g} s"
            )
        if len(message) <= PARSED_HERE_BYTES_MAX:
            return parse_first_message(message)
        return await trio.to_thread.run_sync(
            parse_first_message, message, limiter=self._parsing, abandon_on_cancel=True
        )

    async def _follow(self, ws: Page, request: TailRequest, since: Since) -> None:
        consume = partial(self._consume, request)
        with contextlib.ExitStack() as stack:
            group = None
            if self._sharing is not None and isinstance(ws, BoundedWebSocket):
                shared = Shared(request.feed, request.key_prefix, request.keys_only, self._token, self._certificate)
                name = f"websocket tails of {request.feed}"
                group = stack.enter_context(self._sharing.group(shared, partial(consume, name=name)))
            async with Lifetime() as lifetime:
                lifetime.start(partial(_expect_nothing, ws))
                lifetime.start(partial(_ping, ws))
                await Tail(request.feed, consume, _Outlet(ws, self._in_time), group).run(since)

    def _consume(self, request: TailRequest, start: Start, name: str | None = None) -> Stream:
        return open_stream(self._connect, request, start, name or f"websocket {self._peer}", self._token)

    async def _send(self, ws: Page, message: str) -> None:
        await self._in_time(partial(ws.send_message, message))

    async def _in_time(self, send: Callable[[], Awaitable[None]]) -> None:
        # Shielded, since half a message could not be followed by a word of goodbye.
        with trio.CancelScope(deadline=trio.current_time() + SEND_SECONDS_MAX, shield=True) as self._sending:
            await send()
        if self._sending.cancelled_caught:
            raise TooSlow(f"the client took no message for {SEND_SECONDS_MAX:g} s")
        await trio.lowlevel.checkpoint_if_cancelled()


class _Outlet:
    """The outlet of a tail: each message, and each piece of frames, has its time."""

    def __init__(self, ws: Page, in_time: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]) -> None:
        self._ws = ws
        self._in_time = in_time

    async def send(self, message: str) -> None:
        """Sends a message."""
        await self._in_time(partial(self._ws.send_message, message))

    async def send_frames(self, frames: bytes) -> None:
        """Sends messages as whole frames of WebSocket."""
        assert isinstance(self._ws, BoundedWebSocket), "others have no frames of their own, and share no hub"
        await self._in_time(partial(self._ws.send_frames, frames))


async def _expect_nothing(ws: Page) -> None:
    await ws.get_message()
    raise BadRequest("a message came while none is expected: with since=message there is one, and it is the first")


async def _ping(ws: Page) -> None:
    while True:
        await trio.sleep(PING_INTERVAL_SECONDS)
        with trio.move_on_after(PONG_SECONDS_MAX) as scope:
            await ws.ping()
        if scope.cancelled_caught:
            raise TooSlow(f"the client did not answer a ping within {PONG_SECONDS_MAX:g} s")
