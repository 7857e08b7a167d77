"""The console's questions over HTTP: JSON below /api/, each checked as the frame that asks for the same.

    GET  /api/console                           the overview
    GET  /api/feeds                             the feeds, by name, a page of them
    GET  /api/feeds/NAME                        a feed and its partitions
    GET  /api/feeds/NAME/partitions/NUMBER      a partition: segments, branches, followers
    GET  /api/feeds/NAME/key                    the versions of a key
    POST /api/feeds/NAME/explain                where a consumer with stored positions would go on
    POST /api/feeds/NAME/reset                  what a consumer would get that begins elsewhere
    GET  /api/consumers                         the consumers, the worst first, a page of them
    GET  /api/consumers/ID                      a consumer and its streams

docs/reference/console-api.md has the members.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeAlias
from urllib.parse import unquote_to_bytes

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tailrace.block import KEY_BYTES_MAX
from tailrace.errors import BadPosition, DataGone, Forbidden, Retryable, TailraceError, TooLarge, UnknownFeed
from tailrace.model.json_rows import field_bytes
from tailrace.tls.engine import PeerIdentity
from tailrace.wire.filters import StreamFilter
from tailrace_server.serving.access import Access
from tailrace_server.serving.bearer import bearer_of
from tailrace_server.serving.board.board import Board
from tailrace_server.serving.board.keys import VERSIONS_DEFAULT, VERSIONS_MAX, key_versions
from tailrace_server.serving.board.pages import BadRequest, NotFound, number_of
from tailrace_server.serving.board.positions import explain_resume, preview_reset
from tailrace_server.serving.board.views import VIEWS, feed_of
from tailrace_server.serving.http.answers import json_answer, peer_of
from tailrace_server.serving.http.certificate import certificate_of
from tailrace_server.serving.http.headers import CHALLENGE
from tailrace_server.serving.http.identified import note_identified

log = logging.getLogger("tailrace.http")

Answer: TypeAlias = Callable[[Request, Access], Awaitable[dict[str, Any]]]


CODES: tuple[tuple[type[TailraceError], int], ...] = (
    (BadRequest, 400),
    (BadPosition, 400),
    (TooLarge, 413),
    (Forbidden, 403),
    (NotFound, 404),
    (UnknownFeed, 404),
    (DataGone, 410),
    (Retryable, 503),
)


# The members of a body with the key prefix of the stream that it asks about.
_FILTER = ("key_prefix", "key_prefix_encoding")
# Positions of some ten thousand partitions.
BODY_BYTES_MAX = 1024 * 1024


class ConsoleApi:
    """The routes below /api/, over the board of a node."""

    def __init__(
        self,
        board: Callable[[], Board],
        identify: Callable[[str | None, str, PeerIdentity | None], Access],
        pause_s: Callable[[str, str | None], float],
    ) -> None:
        """``board`` gives the node's; ``identify`` and ``pause_s`` as those of `Authority`."""
        self._board = board
        self._identify = identify
        self._pause_s = pause_s

    def routes(self) -> list[BaseRoute]:
        """Returns the routes."""
        return [
            Route("/api/console", self._endpoint(self._view("overview"))),
            Route("/api/feeds", self._endpoint(self._view("feeds"))),
            Route("/api/feeds/{feed}", self._endpoint(self._view("feed"))),
            Route("/api/feeds/{feed}/partitions/{partition}", self._endpoint(self._view("partition"))),
            Route("/api/feeds/{feed}/key", self._endpoint(self._key)),
            Route("/api/feeds/{feed}/explain", self._endpoint(self._explain), methods=["POST"]),
            Route("/api/feeds/{feed}/reset", self._endpoint(self._reset), methods=["POST"]),
            Route("/api/consumers", self._endpoint(self._view("consumers"))),
            Route("/api/consumers/{id}", self._endpoint(self._view("consumer"))),
        ]

    def _view(self, name: str) -> Answer:
        view = VIEWS[name]

        async def answer(request: Request, access: Access) -> dict[str, Any]:
            return await view(self._board(), access, values_of(request))

        return answer

    async def _key(self, request: Request, access: Access) -> dict[str, Any]:
        values = values_of(request)
        versions = number_of(values, "versions", VERSIONS_DEFAULT, 1, VERSIONS_MAX)
        key = key_of(request.scope["query_string"])
        board = self._board()
        feed = feed_of(board, access, values)
        async with board.long_questions:
            return await key_versions(board.node, access, feed, key, versions)

    async def _explain(self, request: Request, access: Access) -> dict[str, Any]:
        board = self._board()
        feed = feed_of(board, access, values_of(request))
        body = await body_of(request, ("positions", "level", *_FILTER))
        access.require_stream(feed.info.feed_id, filter_of(body))
        async with board.long_questions:
            return await explain_resume(board.node, feed, body.get("positions", ""), body.get("level", ""))

    async def _reset(self, request: Request, access: Access) -> dict[str, Any]:
        board = self._board()
        feed = feed_of(board, access, values_of(request))
        body = await body_of(request, ("to", "from", *_FILTER))
        access.require_stream(feed.info.feed_id, filter_of(body))
        async with board.long_questions:
            return await preview_reset(board.node, feed, body.get("to", ""), body.get("from", ""))

    def _endpoint(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            token, peer = bearer_of(request.headers.getlist("authorization")), peer_of(request)
            try:
                access = self._identify(token, peer, certificate_of(request))
                note_identified(request)
            except TailraceError as error:
                await trio.sleep(self._pause_s(peer, token))
                return json_answer({"error": "Unauthorized", "message": str(error)}, 401, CHALLENGE)
            try:
                return json_answer(await answer(request, access))
            except TailraceError as error:
                return json_answer(told(error), code_of(error))
            except Exception:
                # A bug of ours ends this answer. It is logged here, since the layers below would not log it.
                log.exception("%s %s", request.method, request.url.path)
                message = "a bug of the node; its log says more"
                return json_answer({"error": "InternalError", "message": message}, 500)

        return endpoint


def values_of(request: Request) -> Mapping[str, Any]:
    """Returns the parameters of a request: those of its query, and those of its path. BadRequest."""
    query = request.query_params
    if len(query) != len(query.multi_items()):
        raise BadRequest("a parameter was given twice")
    return {**query, **request.path_params}


def key_of(query: bytes) -> bytes:
    """Returns the key in a query, percent-encoded bytes. Raises BadRequest."""
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        if name == b"key":
            key = unquote_to_bytes(value.replace(b"+", b" "))
            if not key or len(key) > KEY_BYTES_MAX:
                raise BadRequest(f"key has {len(key)} bytes, and has to have 1 to {KEY_BYTES_MAX}")
            return key
    raise BadRequest("key is missing: ?key= and its bytes, percent-encoded")


async def body_of(request: Request, names: Collection[str]) -> Mapping[str, str]:
    """Returns the members of a body, an object of texts. Raises BadRequest."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise BadRequest("the body has to be JSON, with content-type: application/json")
    data = bytearray()
    async with contextlib.aclosing(request.stream()) as parts:
        async for part in parts:
            data += part
            if len(data) > BODY_BYTES_MAX:
                raise TooLarge(f"the body is longer than {BODY_BYTES_MAX} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise BadRequest("the body has to be a JSON object of texts")
    unknown = sorted(value.keys() - set(names))
    if unknown:
        raise BadRequest(f"there is no member {unknown[0]!r:.100}: {', '.join(names)} are known")
    return value


def filter_of(body: Mapping[str, str]) -> StreamFilter:
    """Returns the filter of the stream that a body asks about. Raises BadRequest."""
    try:
        prefix = field_bytes({"key_prefix": "", **body}, "key_prefix") or b""
    except ValueError as error:
        raise BadRequest(f"key_prefix: {error}") from None
    if len(prefix) > KEY_BYTES_MAX:
        raise BadRequest(f"key_prefix has {len(prefix)} bytes, a key at most {KEY_BYTES_MAX}")
    return StreamFilter(prefix)


def told(error: TailraceError) -> dict[str, str]:
    """Returns an error as JSON."""
    return {"error": type(error).__name__, "message": str(error)}


def code_of(error: TailraceError) -> int:
    """Returns the status code of an answer with an error."""
    return next((code for kind, code in CODES if isinstance(error, kind)), 500)
