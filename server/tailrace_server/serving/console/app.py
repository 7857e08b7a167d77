"""The answers of a node over HTTP.

With tokens (`serve --auth`) all but /healthz and /readyz need one of any role, in ``Authorization: Bearer``.

    GET /healthz       200 if nothing is wrong with the node, else 503; with the reason as JSON
    GET /readyz        200 if the node serves clients, else 503; with the reason as JSON
    GET /metrics       the metrics for Prometheus; with ?partitions=FEED also those of each partition of a feed
    GET /api/status    the node's whole status, as JSON
    GET /              a page that points to these

Nothing here changes anything, and nothing may be read by the scripts of other origins: there are no CORS headers, and a
request that names another host than this node is answered 421 (`tailrace_server.serving.hosts`).
"""

from __future__ import annotations

import html
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tailrace.errors import Forbidden, TailraceError
from tailrace.link.address import Address
from tailrace_server.serving.access import Access
from tailrace_server.serving.bearer import bearer_of
from tailrace_server.serving.hosts import host_allowed, refusal

log = logging.getLogger("tailrace.http")

_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
_CHALLENGE = {"www-authenticate": "Bearer"}
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Tailrace</title>
<h1>{software}</h1>
<p>Node {node_id}, data in {data}.</p>
<ul>
<li><a href="/healthz">/healthz</a>: whether anything is wrong with this node</li>
<li><a href="/readyz">/readyz</a>: whether this node serves clients</li>
<li><a href="/metrics">/metrics</a>: its metrics, for Prometheus</li>
<li><a href="/api/status">/api/status</a>: everything that it says of itself, as JSON</li>
</ul>
</html>
"""


class HasStatus(Protocol):
    """The part of a node that is shown."""

    def identify(self, token: str | None, peer: str) -> Access:
        """As ``Node.identify``."""
        ...

    def pause_s(self, peer: str) -> float:
        """As ``Node.pause_s``."""
        ...

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


def make_app(node: HasStatus, hosts: Collection[str] = ()) -> ASGIApp:
    """The ASGI application over ``node``, which may be reached by its addresses and by the names in ``hosts``."""

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
        return Response(body, headers=_HEADERS | {"content-type": content_type})

    async def api_status(request: Request, access: Access) -> Response:
        return Response(await node.status_body(access), media_type="application/json", headers=_HEADERS)

    async def page(request: Request, access: Access) -> Response:
        status = node.health()
        shown = {name: html.escape(str(status[name])) for name in ("software", "node_id", "data")}
        return HTMLResponse(_PAGE.format_map(shown), headers=_HEADERS)

    def answering(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                return await answer(request)
            except Exception:
                # A bug of ours ends this answer. It is logged here, since the layers below would not log it.
                log.exception("GET %s", request.url.path)
                return PlainTextResponse("internal error; the node's log says more\n", status_code=500)

        return endpoint

    def identified(
        answer: Callable[[Request, Access], Awaitable[Response]],
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns what answers a request with a token that counts, and refuses others."""

        async def checked(request: Request) -> Response:
            token, peer = bearer_of(request.headers.getlist("authorization")), _peer_of(request)
            try:
                access = node.identify(token, peer)
            except TailraceError as error:
                await trio.sleep(node.pause_s(peer))
                return PlainTextResponse(f"{error}\n", status_code=401, headers=_HEADERS | _CHALLENGE)
            try:
                return await answer(request, access)
            except Forbidden as error:
                return PlainTextResponse(f"{error}\n", status_code=403, headers=_HEADERS)

        return answering(checked)

    routes = [
        Route("/", identified(page)),
        Route("/healthz", answering(health)),
        Route("/readyz", answering(ready)),
        Route("/metrics", identified(metrics)),
        Route("/api/status", identified(api_status)),
    ]
    return _checking_hosts(Starlette(routes=routes), hosts)


def _peer_of(request: Request) -> str:
    return "unknown" if request.client is None else str(Address(request.client.host, request.client.port))


def _probed(is_good: bool, told: dict[str, Any]) -> Response:
    """Returns the answer to a probe, which looks at the code alone; people read the reason."""
    return JSONResponse(told, status_code=200 if is_good else 503, headers=_HEADERS)


def _checking_hosts(app: ASGIApp, hosts: Collection[str]) -> ASGIApp:
    """Answers 421 before ``app`` sees a request whose ``Host`` is not a name of this node."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            for host in named:
                if not host_allowed(host, hosts):
                    response = PlainTextResponse(refusal(host), status_code=421, headers=_HEADERS)
                    await response(scope, receive, send)
                    return
        await app(scope, receive, send)

    return checked
