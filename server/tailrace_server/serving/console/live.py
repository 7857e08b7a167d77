"""The live channel: one WebSocket of the console, which is sent what has changed, at most every 2 s.

    {"watch": [TOPIC, ...]} ──> views, each with what the page has of it ──> value, then changes ──> the page
                                     beat, if there is nothing to send

The token is looked at again whenever tokens may have changed, so a revoked one ends the channel within a second.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import trio
from starlette.websockets import WebSocket

from tailrace import _version
from tailrace.errors import Forbidden, Retryable, TailraceError
from tailrace_server.serving.access import Access
from tailrace_server.serving.board.board import INTERVAL_SECONDS, Board
from tailrace_server.serving.board.changes import Shown
from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.board.views import VIEWS, View

SUBPROTOCOL = "tailrace.console.v1"
# A page that hears nothing for three of these may take the node for lost.
BEAT_SECONDS = 5.0
# How often the token is looked at.
CHECK_SECONDS = 0.5
TOPICS_MAX = 8
WATCH_CHARS_MAX = 16 * 1024
CLOSE_SECONDS_MAX = 0.4

BAD_MESSAGE, UNAUTHORIZED, FORBIDDEN, GOING_AWAY, OVERLOADED, INTERNAL_ERROR = 4400, 4401, 4403, 1001, 4503, 1011


class Unauthorized(TailraceError):
    """The token does not count, or no longer."""


class Topic(NamedTuple):
    """A view that a page watches, its parameters, and what the page has of it."""

    name: str
    view: View
    values: dict[str, Any]
    shown: Shown


def parse_watch(message: str) -> list[Topic]:
    """Returns the topics that a message asks for. Raises BadRequest."""
    try:
        value = json.loads(message) if len(message) <= WATCH_CHARS_MAX else None
    except (ValueError, RecursionError):
        value = None
    watched = value.get("watch") if isinstance(value, dict) else None
    if not isinstance(watched, list) or not all(isinstance(each, dict) for each in watched):
        raise BadRequest('a message has to be {"watch": [{"topic": "overview"}, ...]}')
    if len(watched) > TOPICS_MAX:
        raise BadRequest(f"{len(watched)} topics are watched, and at most {TOPICS_MAX} can be")
    return [_topic(each) for each in watched]


def _topic(value: dict[str, Any]) -> Topic:
    name = value.get("topic")
    view = VIEWS.get(name) if isinstance(name, str) else None
    if view is None or not isinstance(name, str):
        raise BadRequest(f"there is no topic {name!r:.100}: {', '.join(VIEWS)} are known")
    return Topic(name, view, {key: each for key, each in value.items() if key != "topic"}, Shown(name))


class LiveSession:
    """One live channel. Only its own methods change its fields."""

    def __init__(self, socket: WebSocket, board: Board, identify: Callable[[], Access]) -> None:
        """``identify`` returns what the bearer of the token may do now, or raises Forbidden."""
        self._socket = socket
        self._board = board
        self._identify = identify
        self._scope = trio.CancelScope()
        self._topics: list[Topic] = []
        self._watch = 0  # the number of the last message
        self._wanted = trio.Event()
        self._sent_at = -math.inf
        self._is_gone = False
        self._seen: tuple[int, int] | None = None  # the version of the tokens when the token was looked at last

    def stop(self) -> None:
        """Ends the channel: the node is about to stop."""
        self._scope.cancel()

    async def run(self) -> None:
        """Serves an accepted WebSocket to its end."""
        code, reason = GOING_AWAY, "the node is stopping"
        with self._scope:
            code, reason = await self._serve()
        if not self._is_gone:
            with trio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
                await self._socket.close(code, reason)

    async def _serve(self) -> tuple[int, str]:
        """Serves the channel until something ends it. Returns the code and the reason of the close."""
        ended: TailraceError | None = None
        try:
            access = self._checked_access(None)
            await self._send({"type": "hello", **self._hello()})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                await self._look_for_ever(access)
        except* TailraceError as group:
            ended = _first(group)
        assert ended is not None, "the channel has ended without an error"
        await self._send({"type": "error", "error": type(ended).__name__, "message": str(ended)})
        return close_code(ended), type(ended).__name__

    def _hello(self) -> dict[str, Any]:
        return {
            "node_id": self._board.node.identity.node_id.hex(),
            "software": f"tailrace {_version.__version__}",
            "interval_s": INTERVAL_SECONDS,
            "beat_s": BEAT_SECONDS,
        }

    async def _listen(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                self._is_gone = True
                self._scope.cancel()
                return
            text = message.get("text")
            if text is None:
                raise BadRequest("a message has to be text")
            self._topics, self._watch = parse_watch(text), self._watch + 1
            self._wanted.set()

    async def _look_for_ever(self, access: Access) -> None:
        look_at, watch = -math.inf, 0
        while True:
            access = self._checked_access(access)
            if self._watch != watch or trio.current_time() >= look_at:
                watch, self._wanted = self._watch, trio.Event()
                look_at = trio.current_time() + INTERVAL_SECONDS
                await self._look(access)
            if trio.current_time() - self._sent_at >= BEAT_SECONDS:
                await self._send({"type": "beat", "at_s": self._board.node.clock.wall_us() / 1e6})
            with trio.move_on_after(CHECK_SECONDS):
                await self._wanted.wait()

    async def _look(self, access: Access) -> None:
        """Sends what has changed of each topic."""
        watch = self._watch
        for index, topic in enumerate(self._topics):
            try:
                value = await topic.view(self._board, access, topic.values)
            except TailraceError as error:
                message = topic.shown.fail(type(error).__name__, str(error))
            else:
                message = topic.shown.update(value, trio.current_time())
            if self._watch != watch:
                return  # the page asks for something else meanwhile
            if message is not None:
                await self._send({"watch": watch, "index": index, "topic": topic.name, **message})

    def _checked_access(self, access: Access | None) -> Access:
        """Returns the access of the token, looked at again if it may have changed. Unauthorized."""
        feeds, clock = self._board.node.feeds, self._board.node.clock
        version, expires_us = feeds.version(), None if access is None else access.principal.expires_us
        if access is not None and version == self._seen and (expires_us is None or clock.wall_us() < expires_us):
            return access
        self._seen = version
        try:
            return self._identify()
        except TailraceError as error:
            raise Unauthorized(str(error)) from None

    async def _send(self, message: dict[str, Any]) -> None:
        self._sent_at = trio.current_time()
        await self._socket.send_text(json.dumps(message, separators=(",", ":")))


def close_code(error: TailraceError) -> int:
    """Returns the code of a close that follows an error."""
    codes = ((BadRequest, BAD_MESSAGE), (Unauthorized, UNAUTHORIZED), (Forbidden, FORBIDDEN), (Retryable, OVERLOADED))
    return next((code for kind, code in codes if isinstance(error, kind)), INTERNAL_ERROR)


def _first(group: BaseExceptionGroup[TailraceError]) -> TailraceError:
    """Returns the first error of a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TailraceError)
    return error
