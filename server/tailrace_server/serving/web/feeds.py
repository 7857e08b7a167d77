"""GET /feeds lists the feeds, and PUT /feeds/FEED makes one with the settings in the body."""

from __future__ import annotations

import inspect
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tailrace.errors import UnknownFeed
from tailrace.model import FeedInfo
from tailrace.trio.client import Client
from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.http.answers import json_answer
from tailrace_server.serving.web.bodies import Bodies
from tailrace_server.serving.web.clients import Clients
from tailrace_server.serving.web.guard import Who
from tailrace_server.serving.web.request import feed_of, query_of

BODY_BYTES_MAX = 4 * 1024
# The settings that a feed may be made with: those of the SDK.
SETTINGS = tuple(
    name for name in inspect.signature(Client.create_feed).parameters if name not in ("self", "name", "exist_ok")
)


class FeedsAnswers:
    """The answers about whole feeds."""

    def __init__(self, clients: Clients, bodies: Bodies) -> None:
        """``bodies`` counts the settings that are being read, with other bodies."""
        self._clients = clients
        self._bodies = bodies

    async def get(self, request: Request, who: Who) -> Response:
        """Answers with the feeds that the client may use."""
        query_of(request, ())
        async with self._clients.client(request, who.shown) as client:
            feeds = await client.client.feeds()
        return json_answer({"feeds": [feed_json(info) for info in feeds]})

    async def put(self, request: Request, who: Who) -> Response:
        """Makes a feed, unless it exists with these settings. Raises BadRequest, and as `Client.create_feed`."""
        name = feed_of(request.scope["raw_path"])
        query_of(request, ())
        async with self._bodies.read(request, BODY_BYTES_MAX, "the settings of a feed") as body:
            settings = parse_settings(body)
        async with self._clients.own_client(request, who.peer, who.shown) as client:
            try:
                await client.create_feed(name, **settings)
            except TypeError as error:  # a text that should be a number, or the other way around
                raise BadRequest(str(error)) from None
            found = next((info for info in await client.feeds() if info.name == name), None)
        if found is None:
            raise UnknownFeed(f"feed {name!r} was dropped again at once")
        return json_answer(feed_json(found))


def parse_settings(body: bytes) -> dict[str, Any]:
    """Returns the settings in a body, a JSON object of texts and numbers; an empty body has none. Raises BadRequest."""
    try:
        value = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(_is_setting(each) for each in value.values()):
        raise BadRequest('the body has to be a JSON object of settings, such as {"partitions": 4}')
    unknown = sorted(value.keys() - set(SETTINGS))
    if unknown:
        raise BadRequest(f"there is no setting {unknown[0]!r:.100}: {', '.join(SETTINGS)} are known")
    return value


def _is_setting(value: Any) -> bool:
    return value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))


def feed_json(info: FeedInfo) -> dict[str, Any]:
    """Returns a feed with its settings as a JSON object."""
    return info._asdict() | {"feed_id": info.feed_id.hex()}
