"""PUT, GET and DELETE of a key: /feeds/FEED/keys/KEY."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from tailrace.block import VALUE_BYTES_MAX
from tailrace.model import Item, LevelName, Version
from tailrace.trio.feed import Feed
from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.http.answers import json_answer
from tailrace_server.serving.http.headers import HEADERS
from tailrace_server.serving.web.bodies import Bodies
from tailrace_server.serving.web.clients import Clients
from tailrace_server.serving.web.errors import Absent, NoSuchKey
from tailrace_server.serving.web.guard import Who
from tailrace_server.serving.web.request import (
    Condition,
    condition_of,
    feed_and_key,
    has_tag,
    level_of,
    query_of,
    seconds_of,
    version_of,
)
from tailrace_server.serving.web.values import ValueAnswer, Values
from tailrace_server.serving.web.versions import etag, version_json

_PUT = ("level", "if_version", "if_absent", "ttl")
_DELETE = ("level", "if_version", "if_present")
_GET = ("level", "at_least")


class KeysApi:
    """The answers about single keys."""

    def __init__(self, clients: Clients, bodies: Bodies, values: Values) -> None:
        """``bodies`` counts the values that are being written, with other bodies; ``values`` those that are read."""
        self._clients = clients
        self._bodies = bodies
        self._values = values

    async def get(self, request: Request, who: Who) -> Response:
        """Answers with the value of a key. Raises NoSuchKey, and as `Feed.get`."""
        feed, key = feed_and_key(request.scope["raw_path"])
        query = query_of(request, _GET)
        level, at_least = level_of(query) or "disk", version_of(query, "at_least")
        async with self._clients.client(request, who.shown) as client:
            item = await client.on_feed(feed, lambda on: on.get(key, level=level, at_least=at_least))
        if item is None:
            raise NoSuchKey(f"feed {feed!r} has no key {key!r:.200}")
        if has_tag(request.headers.get("if-none-match"), etag(item.version)):
            return Response(status_code=304, headers={**HEADERS, **_of_item(item)})
        return ValueAnswer(item.value, {**HEADERS, **_of_item(item)}, self._values)

    async def put(self, request: Request, who: Who) -> Response:
        """Sets the value of a key to the body of the request. Raises as `Feed.put`."""
        feed, key = feed_and_key(request.scope["raw_path"])
        query = query_of(request, _PUT)
        level, condition, ttl = level_of(query), condition_of(request.headers, query), seconds_of(query, "ttl")
        if condition.present:
            raise BadRequest("a put has no condition that the key exists: give its version")
        if "content-range" in request.headers:
            raise BadRequest("the body has Content-Range, and a put sets the whole value: read it, and send all of it")
        async with (
            self._bodies.read(request, VALUE_BYTES_MAX, "a value") as value,
            self._clients.client(request, who.shown) as client,
        ):
            version = await client.on_feed(feed, partial(_put, key, value, level, condition, ttl))
        return _written(version)

    async def delete(self, request: Request, who: Who) -> Response:
        """Deletes a key. Raises Absent if it should exist and does not, and as `Feed.delete`."""
        feed, key = feed_and_key(request.scope["raw_path"])
        query = query_of(request, _DELETE)
        level, condition = level_of(query), condition_of(request.headers, query)
        if condition.absent:
            raise BadRequest("a deletion has no condition that the key does not exist")
        async with self._clients.client(request, who.shown) as client:
            version = await client.on_feed(feed, partial(_delete, key, level, condition))
        if version is None:
            raise Absent(f"feed {feed!r} has no key {key!r:.200}, and nothing was written")
        return _written(version)


async def _put(
    key: bytes, value: bytes, level: LevelName | None, condition: Condition, ttl: int | None, feed: Feed
) -> Version:
    return await feed.put(key, value, level=level, if_version=condition.version, if_absent=condition.absent, ttl=ttl)


async def _delete(key: bytes, level: LevelName | None, condition: Condition, feed: Feed) -> Version | None:
    if condition.present:
        return await feed.delete_if_present(key, level=level)
    return await feed.delete(key, level=level, if_version=condition.version)


def _written(version: Version) -> Response:
    return json_answer(version_json(version), headers={"etag": etag(version)})


def _of_item(item: Item) -> dict[str, str]:
    version = item.version
    return {
        "etag": etag(version),
        "tailrace-partition": str(version.partition),
        "tailrace-seq": str(version.seq),
        "tailrace-timestamp": str(item.timestamp),
    }
