"""Each route of HTTP with each method, plain and by TLS: asked by strangers, and by a reader of another feed."""

import dataclasses
import json

import pytest
import trio
from starlette.routing import Route
from tests.tailrace_server.serving.secured import Secured, SecuredByTls
from tests.tailrace_server.serving.test_bearers import UPGRADE

import tailrace
from tailrace_server.serving.console import http_listener
from tailrace_server.serving.console.app import make_routes
from tailrace_server.serving.console.live import SUBPROTOCOL
from tailrace_server.serving.console.sockets import Sockets
from tailrace_server.serving.tailing import ws_listener
from tailrace_server.serving.web.api import FeedsApi

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
READ, ASK = frozenset(("GET", "HEAD")), frozenset(("POST",))
# Routes without a token: they have no data of a feed.
OPEN_PATHS = {
    "/": "/",
    "/page/{name:path}": "/page/main.js",
    "/healthz": "/healthz",
    "/readyz": "/readyz",
    "/openapi.json": "/openapi.json",
}
# All others, with the requests that a reader of the keys of `orders` that begin with "eu/" may make, if there is one,
# and with those that it may not.
JSON_BODY = {"explain": {"positions": ""}, "reset": {"to": "now"}}
GUARDED = {
    "/metrics": (None, ["/metrics", "/metrics?partitions=orders", "/metrics?partitions=payments"]),
    "/api/status": ("/api/status", []),
    "/api/console": ("/api/console", []),
    "/api/feeds": ("/api/feeds", []),
    "/api/feeds/{feed}": ("/api/feeds/orders", ["/api/feeds/payments", "/api/feeds/_feeds"]),
    "/api/feeds/{feed}/partitions/{partition}": (
        "/api/feeds/orders/partitions/0",
        ["/api/feeds/payments/partitions/0", "/api/feeds/_feeds/partitions/0"],
    ),
    "/api/feeds/{feed}/key": (
        "/api/feeds/orders/key?key=eu/1",
        ["/api/feeds/payments/key?key=eu/1", "/api/feeds/orders/key?key=us/1", "/api/feeds/_feeds/key?key=eu/1"],
    ),
    "/api/feeds/{feed}/explain": (None, ["/api/feeds/payments/explain", "/api/feeds/orders/explain"]),
    "/api/feeds/{feed}/reset": (None, ["/api/feeds/payments/reset", "/api/feeds/orders/reset"]),
    "/api/consumers": ("/api/consumers", []),
    "/api/consumers/{id}": (None, []),
    "/feeds/{feed}/keys/{key:any_text}": (
        "/feeds/orders/keys/eu/1",
        ["/feeds/payments/keys/eu/1", "/feeds/orders/keys/us/1", "/feeds/_feeds/keys/eu/1"],
    ),
    "/feeds": ("/feeds", []),
    "/feeds/{feed}": (None, []),  # a reader writes nothing: web/test_guard.py, web/test_rows.py
    "/feeds/{feed}/events": (None, ["/feeds/payments/events", "/feeds/orders/events", "/feeds/_feeds/events"]),
}
# The methods of the routes that write.
WRITING = {"/feeds/{feed}/keys/{key:any_text}": READ | {"PUT", "DELETE"}, "/feeds/{feed}": ASK | {"PUT"}}
SOCKETS = {"/api/live": "/api/live", "/api/feeds/{feed}/tail": "/api/feeds/payments/tail"}
SECRET = "payments"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Each answer has a sample of its own, and no refusal waits for its turn."""
    monkeypatch.setattr("tailrace_server.serving.addresses.PAUSE_SECONDS_MAX", 0.0)
    monkeypatch.setattr("tailrace_server.serving.board.board.INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr("tailrace_server.serving.board.board.SHARE_MAX", 1e9)


@pytest.fixture(params=["plain", "tls"])
def speaks_tls(request):
    return request.param == "tls"


@pytest.fixture
async def guarded(speaks_tls, run_node, node_config, authority):
    """A node with tokens and two feeds."""
    config = dataclasses.replace(node_config, auth=True, tls=authority.node() if speaks_tls else None)
    running = await run_node(config)
    made = SecuredByTls(running, authority) if speaks_tls else Secured(running)
    async with made.connect(made.admin) as client:
        for name in ("orders", SECRET):
            feed = await client.create_feed(name, partitions=4)
            await feed.write([tailrace.Put(b"eu/1", b"v"), tailrace.Put(b"us/1", b"v")])
    return made


class Web:
    """A listener of HTTP or WebSocket, asked by bytes."""

    def __init__(self, address, tls):
        self._address, self._tls = address, tls

    async def __call__(self, method, path, token=None, headers="", body=b""):
        """The code and the body of an answer."""
        authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
        close = "" if "Upgrade" in headers else "Connection: close\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{close}{authorization}{headers}\r\n"
        stream, answer = await trio.open_tcp_stream(*self._address), b""
        if self._tls is not None:
            stream = trio.SSLStream(stream, self._tls, server_hostname="localhost", https_compatible=True)
        async with stream:
            await stream.send_all(head.encode() + body)
            while data := await stream.receive_some():
                answer += data
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body


@pytest.fixture
async def web(guarded, speaks_tls, authority):
    node, tls = guarded.running.node, authority.client() if speaks_tls else None
    async with http_listener(node, ("127.0.0.1", 0), tls=node.host.tls.for_browsers if tls else None) as address:
        yield Web(address, tls)


@pytest.fixture
async def routes(guarded, nursery):
    node = guarded.running.node
    return make_routes(node, Sockets(node, nursery), FeedsApi(node, nursery))


def of_http(routes):
    return {route.path: route.methods for route in routes if isinstance(route, Route)}


def filled(path):
    """The path of a route with a feed of which the reader has nothing."""
    if path in OPEN_PATHS:
        return OPEN_PATHS[path]
    return path.replace(":any_text", "").format(feed=SECRET, partition=0, id="1", key="eu/1")


async def test_each_route_is_here(routes):
    assert of_http(routes).keys() == OPEN_PATHS.keys() | GUARDED.keys()
    assert {route.path for route in routes if not isinstance(route, Route)} == SOCKETS.keys()
    for path, methods in of_http(routes).items():
        assert methods == WRITING.get(path, ASK if path.rpartition("/")[2] in JSON_BODY else READ), path


async def test_each_method_of_each_route_is_refused_to_strangers(web, routes):
    """A method that a route does not have is refused first, and tells nothing."""
    for path, methods in of_http(routes).items():
        for method in METHODS:
            code, body = await web(method, filled(path))
            wanted = 405 if method not in methods else 200 if path in OPEN_PATHS else 401
            assert code == wanted, (method, path, body)
            assert SECRET.encode() not in body.replace(filled(path).encode(), b""), (method, path)


async def test_a_wrong_token_has_no_more(web):
    for path in GUARDED:
        code, body = await ask(web, filled(path), "tr1_wrong")
        assert code == 401
        assert b"the token is unknown here" in body


async def test_the_body_of_a_stranger_is_not_waited_for(web):
    """The answer comes though none of the megabyte that is announced has come."""
    for path in (f"/api/feeds/{SECRET}/explain", f"/api/feeds/{SECRET}/reset"):
        code, _ = await web("POST", path, headers="Content-Type: application/json\r\nContent-Length: 1000000\r\n")
        assert code == 401


async def test_unknown_paths_have_nothing(web):
    for path in (
        "/api",
        "/api/",
        "/api/tokens",
        "/feeds/",
        "//",
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/metrics/",
    ):
        for method in METHODS:
            code, body = await web(method, path)
            assert code in (307, 404, 405), (method, path, body)


@pytest.fixture
async def token(guarded):
    """That of a reader of one feed, and of the keys in it that begin with a prefix."""
    return await guarded.token("shop", "read", feeds=["orders"], key_prefix=b"eu/")


async def ask(web, path, token):
    """The answer to a request that the route of ``path`` has."""
    wanted = JSON_BODY.get(path.rpartition("/")[2])
    if wanted is None:
        return await web("POST" if path == f"/feeds/{SECRET}" else "GET", path, token)
    body = json.dumps(wanted).encode()
    return await web("POST", path, token, f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n", body)


async def ask_json(web, path, token):
    code, body = await ask(web, path, token)
    assert code == 200, body
    return json.loads(body)


async def test_a_reader_has_only_its_feed_and_its_keys(web, token):
    for own, others in GUARDED.values():
        for path in others:
            code, body = await ask(web, path, token)
            assert code == 403, (path, body)
        if own is not None:
            code, body = await ask(web, own, token)
            assert code == 200, (own, body)
            assert SECRET.encode() not in body, own


async def test_a_reader_is_told_of_no_consumer_of_another_feed(guarded, web, token):
    async with guarded.connect(guarded.admin, name="theirs") as client, client.feed(SECRET).consume() as stream:
        await anext(aiter(stream))
        [theirs] = (await ask_json(web, "/api/consumers", guarded.admin))["consumers"]
        assert (await ask_json(web, "/api/consumers", token))["consumers"] == []
        found = await ask(web, f"/api/consumers/{theirs['id']}", guarded.admin)
        hidden, missing = [await ask(web, f"/api/consumers/{id}", token) for id in (theirs["id"], "0" * 10)]
        assert (found[0], hidden[0]) == (200, 404)
        assert hidden[1].replace(theirs["id"].encode(), b"0" * 10) == missing[1]


async def test_a_websocket_of_a_stranger_is_told_why_it_ends(web):
    """A page is not shown the code of a refused handshake. So the WebSocket opens, and ends."""
    offered = f"{UPGRADE}Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n"
    for path in SOCKETS.values():
        code, body = await web("GET", path, headers=offered)
        assert code == 101
        assert b'"error":"Unauthorized"' in body
        assert SECRET.encode() not in body


async def test_a_tail_of_another_feed_is_refused(web, token):
    offered = f"{UPGRADE}Sec-WebSocket-Protocol: tailrace.json.v1\r\n"
    for query in ("", "?key_prefix=eu/"):
        code, body = await web("GET", f"/api/feeds/{SECRET}/tail{query}", token, offered)
        assert (code, b'"error":"Forbidden"' in body) == (101, True)
    code, body = await web("GET", "/api/feeds/orders/tail", token, offered)
    assert (code, b'"error":"Forbidden"' in body) == (101, True)  # it asks for other keys, too


async def test_the_listener_of_websockets_refuses_strangers(guarded, speaks_tls, authority):
    node, tls = guarded.running.node, authority.client() if speaks_tls else None
    opened = ws_listener(node.handle, node, ("127.0.0.1", 0), tls=node.host.tls.for_browsers if tls else None)
    async with opened as address:
        tails = Web(address, tls)
        for path in (f"/feeds/{SECRET}", "/feeds/none", "/", "/api/live", "/frames"):
            code, body = await tails("GET", path, headers=UPGRADE)
            assert code == 401, (path, body)
