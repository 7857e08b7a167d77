"""The routes of feeds over HTTP.

GET              /feeds                      the feeds
PUT              /feeds/FEED                 makes a feed
GET, PUT, DELETE /feeds/FEED/keys/KEY        a key
POST             /feeds/FEED                 rows as JSON lines
GET              /feeds/FEED/events          its mutations as server-sent events
GET              /openapi.json               the description of these, for tools
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import trio
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tailrace_server.serving.http.answers import json_answer
from tailrace_server.serving.web import openapi
from tailrace_server.serving.web.bodies import Bodies
from tailrace_server.serving.web.clients import Clients, ForwardingNode
from tailrace_server.serving.web.events import EventsApi
from tailrace_server.serving.web.feeds import FeedsAnswers
from tailrace_server.serving.web.guard import Answer, Guard, Identifying, Who
from tailrace_server.serving.web.keys import KeysApi
from tailrace_server.serving.web.rows import RowsApi
from tailrace_server.serving.web.values import Values


class WebNode(ForwardingNode, Identifying, Protocol):
    """The part of a node that feeds over HTTP use."""


class _AnyText(Convertor[str]):
    """The rest of a path, line ends included. Starlette's own for paths has none."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any_text", _AnyText())


async def _document(request: Request) -> Response:
    """Answers with the OpenAPI document, which has no data of the node: any page and program may read it."""
    headers = {"access-control-allow-origin": "*", "cross-origin-resource-policy": "cross-origin"}
    return json_answer(openapi.document(), headers=headers)


class FeedsApi:
    """The feeds of a node over HTTP."""

    def __init__(self, node: WebNode, nursery: trio.Nursery, origins: Collection[str] = ()) -> None:
        """``nursery`` runs the clients. ``origins``: those of the pages that may ask, besides the node's own."""
        self._guard = Guard(node, origins)
        clients, bodies = Clients(node, nursery), Bodies()
        self._keys = KeysApi(clients, bodies, Values())
        self._rows = RowsApi(clients, bodies)
        self._feeds = FeedsAnswers(clients, bodies)
        self._events = EventsApi(node, nursery)

    def routes(self) -> list[BaseRoute]:
        """Returns the routes."""
        return [
            self._route(
                "/feeds/{feed}/keys/{key:any_text}",
                {"GET": self._keys.get, "PUT": self._keys.put, "DELETE": self._keys.delete},
            ),
            self._route("/feeds", {"GET": self._feeds.get}),
            self._route("/feeds/{feed}", {"PUT": self._feeds.put, "POST": self._rows.post}),
            self._route("/feeds/{feed}/events", {"GET": self._events.get}),
            Route(openapi.PATH, _document),
        ]

    def stop(self) -> None:
        """Ends the streams of events: the node is about to stop."""
        self._events.stop()

    def _route(self, path: str, answers: Mapping[str, Answer]) -> Route:
        """Returns the route of a path, with the answer of each of its methods."""

        async def answer(request: Request, who: Who) -> Response:
            return await answers["GET" if request.method == "HEAD" else request.method](request, who)

        methods = [*answers, *(["OPTIONS"] if self._guard.has_origins else [])]
        return Route(path, self._guard.endpoint(answer), methods=methods)
