"""The answers of a node over HTTP.

With tokens (`serve --auth`) /metrics and all below /api need one of any role, in
``Authorization: Bearer``, or a certificate with rights.

    GET /healthz       200 if nothing is wrong with the node, else 503; with the reason as JSON
    GET /readyz        200 if the node serves clients, else 503; with the reason as JSON
    GET /metrics       the metrics for Prometheus; with ?partitions=FEED also those of each partition of a feed
    GET /api/status    the node's whole status, as JSON
    GET /api/...       the console's questions: api.py
    GET /, /page/...   the console's page, which needs no token: it has no data
    ... /feeds/...     the feeds themselves: tailrace_server.serving.web

Nothing but the last changes anything. A request that names another host than this node is answered 421
(`tailrace_server.serving.hosts`). There are no CORS headers, unless the operator has named an origin.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.errors import Forbidden, TailraceError
from tailrace_server.serving.access import Access
from tailrace_server.serving.bearer import bearer_of
from tailrace_server.serving.console.api import ConsoleApi
from tailrace_server.serving.console.sockets import HasSockets, Sockets
from tailrace_server.serving.console.static import INDEX, is_current, read_files
from tailrace_server.serving.hosts import host_allowed, refusal
from tailrace_server.serving.http.answers import json_answer, peer_of
from tailrace_server.serving.http.certificate import certificate_of
from tailrace_server.serving.http.headers import CHALLENGE, HEADERS, SECURITY
from tailrace_server.serving.http.identified import note_identified
from tailrace_server.serving.web.api import FeedsApi

log = logging.getLogger("tailrace.http")

# The characters of an unknown path that are repeated in an answer.
_SHOWN_CHARS_MAX = 200


class HasStatus(HasSockets, Protocol):
    """The part of a node that is shown."""

    def health(self) -> dict[str, Any]:
        """As ``Node.health``."""
        ...

    async def readiness(self) -> dict[str, Any]:
        """As ``Node.readiness``."""
        ...

    async def status_body(self, access: Access) -> bytes:
        """As ``Node.status_body``."""
        ...

    async def metrics(self, accept: str, feed: str) -> tuple[bytes, str]:
        """As ``Node.metrics``."""
        ...


def make_app(
    node: HasStatus, hosts: Collection[str] = (), sockets: Sockets | None = None, feeds: FeedsApi | None = None
) -> ASGIApp:
    """Makes the ASGI application over ``node``, which may be reached by its addresses and by the names in ``hosts``."""
    routes = make_routes(node, sockets, feeds)
    return _checking_hosts(Starlette(routes=routes, exception_handlers={HTTPException: _unknown}), hosts)


def make_routes(node: HasStatus, sockets: Sockets | None = None, feeds: FeedsApi | None = None) -> list[BaseRoute]:
    """Makes all routes of the application over ``node``."""

    async def health(request: Request) -> Response:
        status = node.health()
        return _probed(status["healthy"], {name: status[name] for name in ("healthy", "failure")})

    async def ready(request: Request) -> Response:
        status = await node.readiness()
        return _probed(status["ready"], status)

    async def metrics(request: Request, access: Access) -> Response:
        access.require_all_feeds()
        accept, feed = request.headers.get("accept", ""), request.query_params.get("partitions", "")
        body, content_type = await node.metrics(accept, feed)
        return Response(body, headers=HEADERS | {"content-type": content_type})

    async def api_status(request: Request, access: Access) -> Response:
        return Response(await node.status_body(access), media_type="application/json", headers=HEADERS)

    def identified(
        answer: Callable[[Request, Access], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns what answers a request with a token that counts, and refuses others."""

        async def checked(request: Request) -> Response:
            token, peer = bearer_of(request.headers.getlist("authorization")), peer_of(request)
            try:
                access = node.identify(token, peer, certificate_of(request))
                note_identified(request)
            except TailraceError as error:
                await trio.sleep(node.pause_s(peer, token))
                return PlainTextResponse(f"{error}\n", status_code=401, headers=HEADERS | CHALLENGE)
            try:
                return await answer(request, access)
            except Forbidden as error:
                return PlainTextResponse(f"{error}\n", status_code=403, headers=HEADERS)

        return _answering(checked)

    page = _page()
    return [
        Route("/", page),
        Route("/page/{name:path}", page),
        Route("/healthz", _answering(health)),
        Route("/readyz", _answering(ready)),
        Route("/metrics", identified(metrics)),
        Route("/api/status", identified(api_status)),
        *ConsoleApi(lambda: node.board, node.identify, node.pause_s).routes(),
        *([] if sockets is None else sockets.routes()),
        *([] if feeds is None else feeds.routes()),
    ]


def _page() -> Callable[[Request], Awaitable[Response]]:
    """Returns what answers requests for the files of the console's page, which it reads now."""
    files = read_files()

    async def page(request: Request) -> Response:
        file = files.get(request.path_params.get("name", INDEX))
        if file is None:
            return PlainTextResponse("there is no such file\n", status_code=404, headers=HEADERS)
        # A browser asks each time whether its copy is current, so that a page never runs with the scripts of another.
        headers = SECURITY | {"cache-control": "no-cache", "etag": file.etag, "content-type": file.content_type}
        if is_current(file, request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers=headers)

    return page


def _answering(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Returns ``answer`` with an answer for errors of the program."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception:
            # A bug of ours ends this answer. It is logged here, since the layers below would not log it.
            log.exception("GET %s", request.url.path)
            return PlainTextResponse("internal error; the node's log says more\n", status_code=500)

    return endpoint


async def _unknown(request: Request, error: Exception) -> Response:
    """Answers a request for a path that there is not, or by another method."""
    assert isinstance(error, HTTPException)
    if f"{request.url.path}/".startswith(("/api/", "/feeds/")):
        message = f"{error.detail}: {request.method} {request.url.path[:_SHOWN_CHARS_MAX]}"
        return json_answer({"error": "NotFound", "message": message}, error.status_code, error.headers)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, {**HEADERS, **(error.headers or {})})


def _probed(is_good: bool, told: dict[str, Any]) -> Response:
    """Returns the answer to a probe, which looks at the code alone; people read the reason."""
    return JSONResponse(told, status_code=200 if is_good else 503, headers=HEADERS)


def _checking_hosts(app: ASGIApp, hosts: Collection[str]) -> ASGIApp:
    """Answers 421 before ``app`` sees a request whose ``Host`` is not a name of this node."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            for host in named:
                if not host_allowed(host, hosts):
                    response = PlainTextResponse(refusal(host), status_code=421, headers=HEADERS)
                    await response(scope, receive, send)
                    return
        await app(scope, receive, send)

    return checked
