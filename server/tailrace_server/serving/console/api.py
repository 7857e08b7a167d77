"""The console's questions over HTTP: JSON below /api/, each checked as the frame that asks for the same.

    GET  /api/console                           the overview
    GET  /api/feeds                             the feeds, by name, a page of them
    GET  /api/feeds/NAME                        a feed and its partitions
    GET  /api/feeds/NAME/partitions/NUMBER      a partition: segments, branches, followers
    GET  /api/consumers                         the consumers, the worst first, a page of them
    GET  /api/consumers/ID                      a consumer and its streams

docs/reference/console-api.md has the members.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tailrace.errors import BadPosition, DataGone, Forbidden, Retryable, TailraceError, UnknownFeed
from tailrace.link.address import Address
from tailrace.tls.engine import PeerIdentity
from tailrace_server.serving.access import Access
from tailrace_server.serving.bearer import bearer_of
from tailrace_server.serving.board.board import Board
from tailrace_server.serving.board.pages import BadRequest, NotFound
from tailrace_server.serving.board.views import VIEWS
from tailrace_server.serving.console.certificate import certificate_of
from tailrace_server.serving.console.headers import CHALLENGE, HEADERS

log = logging.getLogger("tailrace.http")

Answer: TypeAlias = Callable[[Request, Access], Awaitable[dict[str, Any]]]

CODES: tuple[tuple[type[TailraceError], int], ...] = (
    (BadRequest, 400),
    (BadPosition, 400),
    (Forbidden, 403),
    (NotFound, 404),
    (UnknownFeed, 404),
    (DataGone, 410),
    (Retryable, 503),
)


class ConsoleApi:
    """The routes below /api/, over the board of a node."""

    def __init__(
        self,
        board: Callable[[], Board],
        identify: Callable[[str | None, str, PeerIdentity | None], Access],
        pause_s: Callable[[str], float],
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
            Route("/api/consumers", self._endpoint(self._view("consumers"))),
            Route("/api/consumers/{id}", self._endpoint(self._view("consumer"))),
        ]

    def _view(self, name: str) -> Answer:
        view = VIEWS[name]

        async def answer(request: Request, access: Access) -> dict[str, Any]:
            return await view(self._board(), access, values_of(request))

        return answer

    def _endpoint(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            peer = peer_of(request)
            try:
                token = bearer_of(request.headers.getlist("authorization"))
                access = self._identify(token, peer, certificate_of(request))
            except TailraceError as error:
                await trio.sleep(self._pause_s(peer))
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


def peer_of(request: Request) -> str:
    """Returns the address of the client."""
    return "unknown" if request.client is None else str(Address(request.client.host, request.client.port))


def told(error: TailraceError) -> dict[str, str]:
    """Returns an error as JSON."""
    return {"error": type(error).__name__, "message": str(error)}


def code_of(error: TailraceError) -> int:
    """Returns the status code of an answer with an error."""
    return next((code for kind, code in CODES if isinstance(error, kind)), 500)


def json_answer(value: dict[str, Any], code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Returns an answer that no cache keeps."""
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")
    more = {} if headers is None else headers
    return Response(body, status_code=code, media_type="application/json", headers={**HEADERS, **more})
