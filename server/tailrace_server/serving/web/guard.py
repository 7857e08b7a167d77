"""Decides whether a request over HTTP is answered: its page, its token, and the error that its answer raises.

A page of another site can send a request to this node through the browser of a visitor, who may be the only one to
reach the node. Without tokens such a request would count. Its ``Origin`` gives it away: a page cannot change that.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple, Protocol

import trio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tailrace.cli.rowfiles.records import BadRecord
from tailrace.errors import Forbidden, TailraceError
from tailrace.tls.engine import PeerIdentity
from tailrace_server.serving.access import Access
from tailrace_server.serving.bearer import bearer_of
from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.http.answers import json_answer, peer_of
from tailrace_server.serving.http.certificate import certificate_of
from tailrace_server.serving.http.headers import CHALLENGE
from tailrace_server.serving.http.identified import note_identified
from tailrace_server.serving.http.origin import is_own_origin
from tailrace_server.serving.web.bodies import Unread
from tailrace_server.serving.web.clients import Shown
from tailrace_server.serving.web.errors import INTERNAL_ERROR, error_answer

log = logging.getLogger("tailrace.http")

ANY_ORIGIN = "*"
# Headers that a page of another origin may send, and those that it may read.
_PREFLIGHT = {
    "access-control-allow-methods": "GET, HEAD, POST, PUT, DELETE",
    "access-control-allow-headers": "Authorization, Content-Type, If-Match, If-None-Match, Last-Event-ID",
    "access-control-max-age": "600",
}
_EXPOSED = "ETag, Retry-After, Tailrace-Partition, Tailrace-Seq, Tailrace-Timestamp"
# A client that has gone reads no answer. One that has sent no more of its body for too long may still do.
_TOO_SLOW = {"error": "BodyTimeout", "message": "no more of the body came in time: send it again, without pauses"}


class Who(NamedTuple):
    """The client of a request: its rights, its address, and what it has shown for them."""

    access: Access
    peer: str
    shown: Shown


Answer = Callable[[Request, Who], Awaitable[Response]]


class Identifying(Protocol):
    """The part of a node that knows tokens."""

    def identify(self, token: str | None, peer: str, certificate: PeerIdentity | None = None) -> Access:
        """As ``Node.identify``."""
        ...

    def pause_s(self, peer: str, token: str | None) -> float:
        """As ``Node.pause_s``."""
        ...


def _has_unread(request: Request, response: Response) -> bool:
    """Returns whether the answer refuses a request before its body was read."""
    announced = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    return response.status_code >= 400 and announced and not request._stream_consumed


class Guard:
    """Lets requests through to their answers, and makes answers of errors."""

    def __init__(self, node: Identifying, origins: Collection[str] = ()) -> None:
        """``origins``: those of the pages that may ask, besides the node's own; ``*``: all."""
        self._node = node
        self._origins = origins

    @property
    def has_origins(self) -> bool:
        """Whether pages of other origins may ask, so that browsers ask first what they may send."""
        return bool(self._origins)

    def endpoint(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """Returns ``answer`` as a function of the request alone."""

        async def endpoint(request: Request) -> Response:
            response = await self._answer(request, answer)
            response.headers.update(self.cors(request))
            return Unread(response) if _has_unread(request, response) else response

        return endpoint

    async def _answer(self, request: Request, answer: Answer) -> Response:
        try:
            self._check_origin(request)
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=_PREFLIGHT)
            who = await self._identified(request)
            return who if isinstance(who, Response) else await answer(request, who)
        except ClientDisconnect:
            return json_answer(_TOO_SLOW, 408)
        except (TailraceError, BadRecord) as error:
            response = error_answer(error)
            if response.status_code == 500:
                log.exception("%s %s", request.method, request.url.path)
            return response
        except ValueError as error:  # the SDK's, for an argument
            return error_answer(BadRequest(str(error)))
        except Exception:
            # A bug of ours ends this answer. It is logged here, since the layers below would not log it.
            log.exception("%s %s", request.method, request.url.path)
            return json_answer(INTERNAL_ERROR, 500)

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if not is_own_origin(origin, request.headers.get("host")) and not self._permits(origin):
            raise Forbidden(
                f"pages of {origin!r:.200} may not use the feeds of this node; serve --http-origin names the origins "
                "that may"
            )

    def _permits(self, origin: str | None) -> bool:
        return origin is not None and (ANY_ORIGIN in self._origins or origin in self._origins)

    async def _identified(self, request: Request) -> Who | Response:
        token, peer = bearer_of(request.headers.getlist("authorization")), peer_of(request)
        certificate = certificate_of(request)
        try:
            access = self._node.identify(token, peer, certificate)
        except TailraceError as error:
            await trio.sleep(self._node.pause_s(peer, token))
            return json_answer({"error": "Unauthorized", "message": str(error)}, 401, CHALLENGE)
        note_identified(request)
        return Who(access, peer, Shown(token, certificate if token is None else None))

    def cors(self, request: Request) -> dict[str, str]:
        """Returns the headers that let a page of another origin read an answer; none for other pages."""
        origin = request.headers.get("origin")
        if not self._permits(origin):
            return {}
        return {"access-control-allow-origin": str(origin), "access-control-expose-headers": _EXPOSED, "vary": "Origin"}
