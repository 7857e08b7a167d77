"""GET /feeds/FEED/events: a feed as server-sent events, a snapshot first and then live.

The id of an event is the position of a client that has handled the events up to it. A client that sends it back as
``Last-Event-ID`` goes on there, at any node of the set.

Nothing is queued: an event is made when the one before it has gone into the socket. So a client that reads slowly costs
what a slow page of the WebSocket costs (`tailing.session`), and is dropped when it takes nothing for too long.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tailrace.consuming.session import Event
from tailrace.errors import Overloaded, TailraceError
from tailrace.link.address import Address
from tailrace.model.position import Positions
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.stream import Stream
from tailrace.trio.transport import Transport
from tailrace_server.serving.http.headers import HEADERS
from tailrace_server.serving.http.patience import patient
from tailrace_server.serving.tailing.gathering import Gathering
from tailrace_server.serving.tailing.loopback import loopback
from tailrace_server.serving.tailing.messages import encode_message, type_of
from tailrace_server.serving.tailing.request import TailRequest
from tailrace_server.serving.tailing.streams import open_stream
from tailrace_server.serving.tailing.ticks import Start
from tailrace_server.serving.web.clients import ForwardingNode
from tailrace_server.serving.web.errors import error_answer, told
from tailrace_server.serving.web.guard import Who
from tailrace_server.serving.web.request import feed_of, parse_events
from tailrace_server.serving.web.sse import HEARTBEAT, MEDIA_TYPE, encode_event, encode_goodbye, encode_retry

log = logging.getLogger("tailrace.http")

# Each may cost tailing.session.CLIENT_BYTES_MAX if its client is slow.
EVENTS_MAX = 64
# If nothing else is sent for this time, a comment is.
HEARTBEAT_SECONDS = 15.0
# A client that takes nothing for this time is dropped; it can go on from its last id.
SEND_SECONDS_MAX = 30.0
# The time that the last words to a client have.
END_SECONDS_MAX = 0.4
# A browser connects again after this time.
RETRY_MILLISECONDS = 2_000
# An id has the positions of all partitions: of a dense stream it comes with some events only.
# Its text takes 0.7 µs for each partition.
ID_SECONDS_PER_PARTITION = 0.0001
ID_SECONDS_MAX = 1.0


class EventsApi:
    """The streams of events that are open. Only its own methods change its fields."""

    def __init__(self, node: ForwardingNode, nursery: trio.Nursery) -> None:
        """``nursery`` runs the node's end of the connections."""
        self._node = node
        self._nursery = nursery
        self._open: set[EventStream] = set()

    async def get(self, request: Request, who: Who) -> Response:
        """Answers with the events of a feed. Raises BadRequest, BadPosition, Overloaded."""
        query = request.scope["query_string"].decode("latin-1")
        wanted = parse_events(feed_of(request.scope["raw_path"]), query, request.headers.get("last-event-id"))
        if len(self._open) >= EVENTS_MAX:
            raise Overloaded(f"{len(self._open)} streams of events are open, as many as there may be: ask again later")
        name = f"events {who.peer}"

        async def connect(_: Address) -> Transport:
            client, server = loopback(who.peer, "loopback", who.shown.certificate)
            self._nursery.start_soon(self._node.handle, server)
            return client

        stream = open_stream(connect, wanted, Start(wanted.since), name, who.shown.token)
        return EventStream(request, wanted, stream, self._open)

    def stop(self) -> None:
        """Ends all streams: the node is about to stop."""
        for each in self._open:
            each.stop()


class _Gone(TailraceError):
    """The client is gone, or takes nothing any more."""


class EventStream(Response):
    """The answer: events until the client goes, or something ends the stream."""

    def __init__(self, request: Request, wanted: TailRequest, stream: Stream, opened: set[EventStream]) -> None:
        """``opened`` has the answer as long as it is sent."""
        super().__init__(headers={**HEADERS, "x-accel-buffering": "no"}, media_type=MEDIA_TYPE)
        del self.headers["content-length"]
        self._request = request
        self._wanted = wanted
        self._stream = stream
        self._opened = opened
        self._scope = trio.CancelScope()
        self._has_begun = False
        self._send: Send = _unsent

    def stop(self) -> None:
        """Ends the stream with a word to the client: the node is about to stop."""
        self._scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer to its end."""
        self._send = send
        self._opened.add(self)
        try:
            with patient(self._request), self._scope:
                await self._serve(receive)
            if self._scope.cancelled_caught:
                with trio.move_on_after(END_SECONDS_MAX, shield=True):
                    await self._begin()
                    await self._write(encode_goodbye("the node is stopping"))
        except _Gone:
            return  # Hypercorn closes a connection whose answer has no end
        except TailraceError as error:
            if not self._has_begun:
                await self._refuse(error, scope, receive)
                return
            await self._write(encode_event("failure", encode_message("failure", **told(error))))
        except Exception:
            # A bug of ours ends this answer. It is logged here, since the layers below would not log it.
            log.exception("GET %s", self._request.url.path)
            return
        finally:
            self._opened.discard(self)
        await self._in_time({"type": "http.response.body", "body": b"", "more_body": False})

    async def _refuse(self, error: TailraceError, scope: Scope, receive: Receive) -> None:
        response = error_answer(error)
        response.headers.update({name: value for name, value in self.headers.items() if name.startswith("access-")})
        await response(scope, receive, self._send)

    async def _serve(self, receive: Receive) -> None:
        async with Lifetime() as lifetime:
            lifetime.start(partial(_wait_until_gone, receive))
            async with self._stream:
                await self._begin()
                if self._request.method != "HEAD":  # its answer has no body, and would never end
                    await Events(self._stream, self._write).run(self._wanted.feed)

    async def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            await self._in_time({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._write(encode_retry(RETRY_MILLISECONDS))

    async def _write(self, data: bytes) -> None:
        await self._in_time({"type": "http.response.body", "body": data, "more_body": True})

    async def _in_time(self, message: Message) -> None:
        with trio.move_on_after(SEND_SECONDS_MAX) as scope:
            await self._send(message)
        if scope.cancelled_caught:
            raise _Gone(f"the client took nothing for {SEND_SECONDS_MAX:g} s")


async def _unsent(_: Message) -> None:
    raise AssertionError("the answer is not being sent")


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise _Gone("the client has closed the connection")


class Events:
    """The events of one stream for one client."""

    def __init__(self, stream: Stream, write: Callable[[bytes], Awaitable[None]]) -> None:
        """``write`` returns when the client, or its socket, has the bytes."""
        self._stream = stream
        self._write = write
        self._gathering = Gathering()
        self._moved = False  # since an id was sent last
        self._id_at = -math.inf  # when the next one may be sent
        self._partitions = 0
        self._has_ended = False

    async def run(self, feed: str) -> None:
        """Sends to the end of the stream. Raises whatever ends it before, and what ``write`` raises."""
        stream = self._stream
        self._partitions = len(stream.status().partitions)
        opened = encode_message("open", feed=feed, partitions=self._partitions)
        await self._write(encode_event("open", opened, self._take_id(stream.latest_positions)))
        while not self._has_ended:
            event = await self._next_event()
            if event is not None:
                await self._send_event(event)
            elif self._is_id_due():
                # No event of the stream is at hand: this covers all that was sent.
                await self._send_all(self._gathering.take())
                id = self._take_id(stream.latest_positions)
                await self._write(encode_event("positions", encode_message("positions"), id))
            elif not self._has_ended:
                await self._write(HEARTBEAT)
        await self._send_all(self._gathering.take())
        await self._write(encode_event("end", encode_message("end"), str(stream.latest_positions)))

    async def _next_event(self) -> Event | None:
        """Returns the next event; None if an id is due first, or a heartbeat."""
        if self._is_id_due():
            return None
        now = trio.current_time()
        with trio.CancelScope(deadline=min(now + HEARTBEAT_SECONDS, self._id_at if self._moved else math.inf)):
            try:
                return await anext(self._stream)
            except StopAsyncIteration:
                self._has_ended = True
        return None

    async def _send_event(self, event: Event) -> None:
        """Sends the event, with those before it and after it that are at hand. The last one of them has an id."""
        self._moved = True
        await self._send_all(self._gathering.add(event))
        if not self._stream.has_event():
            await self._send_all(self._gathering.take(), has_id=True)

    async def _send_all(self, messages: Iterable[str], *, has_id: bool = False) -> None:
        """Sends messages as events. ``has_id``: the last one completes all that the stream has given, and has an id."""
        held = ""
        for message in messages:
            if held:
                await self._write(encode_event(type_of(held), held))
            held = message
        if held:
            is_due = has_id and trio.current_time() >= self._id_at
            id = self._take_id(self._stream.latest_positions) if is_due else ""
            await self._write(encode_event(type_of(held), held, id))

    def _is_id_due(self) -> bool:
        return self._moved and trio.current_time() >= self._id_at

    def _take_id(self, positions: Positions) -> str:
        self._moved = False
        pause_s = min(ID_SECONDS_PER_PARTITION * self._partitions, ID_SECONDS_MAX)
        self._id_at = trio.current_time() + pause_s
        return str(positions)
