"""What is answered over HTTP, without a socket."""

from __future__ import annotations

import json
import logging

import pytest
import trio

from tailrace_server.serving.access import Access
from tailrace_server.serving.console.app import make_app
from tailrace_server.state.principal import OPEN

STATUS = {
    "healthy": True,
    "failure": None,
    "software": "tailrace 1",
    "node_id": "ab",
    "data": "/d",
    "seq": 2**60,
}


class FakeNode:
    def __init__(self, **changes):
        self._status = {**STATUS, **changes}

    def status(self):
        if self._status["healthy"] is None:
            raise LookupError("a bug")
        return self._status

    def identify(self, token, peer, certificate=None):
        return Access(OPEN, ())

    def pause_s(self, peer, token):
        return 0.0

    async def status_body(self, access):
        return json.dumps(self.status()).encode()

    async def readiness(self):
        ready = self._status.get("ready", True)
        return {"ready": ready, "role": "leader", "failure": None if ready else "a reason"}

    async def metrics(self, accept, feed):
        return f"tailrace_feeds 1 # {accept} {feed}".encode(), "text/plain; version=0.0.4"

    def health(self):
        return {name: value for name, value in self.status().items() if name not in ("seq", "ready")}


async def get(node, path, method="GET", headers=(), hosts=(), query=b""):
    """Status code, headers and body of an answer."""
    sent = []

    async def receive():
        await trio.sleep_forever()

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [*headers],
        "http_version": "1.1",
    }
    await make_app(node, hosts)(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent)


async def test_health_of_a_healthy_node():
    code, _, body = await get(FakeNode(), "/healthz")
    assert (code, json.loads(body)) == (200, {"healthy": True, "failure": None})


async def test_health_says_what_ails_the_node():
    code, _, body = await get(FakeNode(healthy=False, failure="the disk is gone"), "/healthz")
    assert (code, json.loads(body)) == (503, {"healthy": False, "failure": "the disk is gone"})


@pytest.mark.parametrize("ready", [True, False])
async def test_readiness_is_told_with_its_reason(ready):
    code, headers, body = await get(FakeNode(ready=ready), "/readyz")
    assert (code, headers["content-type"]) == (200 if ready else 503, "application/json")
    assert json.loads(body) == {"ready": ready, "role": "leader", "failure": None if ready else "a reason"}


async def test_who_asks_for_health_has_no_feed_looked_at(running):
    """A probe comes every few seconds, and a node may have many thousand partitions."""
    node = running.node

    def looked_at():
        raise AssertionError("the partitions are walked through")

    node.feeds.partitions = looked_at
    type_of_feeds = type(node.feeds)
    node.feeds.__class__ = type("Unseen", (type_of_feeds,), {"__iter__": lambda self: looked_at()})
    try:
        assert [(await get(node, path))[0] for path in ("/healthz", "/")] == [200, 200]
        assert (await get(node, "/api/status"))[0] == 500
    finally:
        node.feeds.__class__ = type_of_feeds
        del node.feeds.partitions


async def test_status_is_the_nodes_own():
    code, headers, body = await get(FakeNode(), "/api/status")
    assert (code, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == STATUS


async def test_metrics_are_in_the_format_that_is_asked_for_with_partitions_on_request():
    code, headers, body = await get(FakeNode(), "/metrics", headers=[(b"accept", b"text/plain")])
    assert (code, headers["content-type"]) == (200, "text/plain; version=0.0.4")
    assert body == b"tailrace_feeds 1 # text/plain "
    _, _, body = await get(FakeNode(), "/metrics", query=b"partitions=orders")
    assert body == b"tailrace_feeds 1 #  orders"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/api/status", "/page/nothing"])
async def test_no_answer_is_kept_or_given_to_other_origins(path):
    _, headers, _ = await get(FakeNode(), path)
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers
    assert "default-src 'none'" in headers["content-security-policy"]


async def test_other_paths_and_methods():
    assert (await get(FakeNode(), "/nothing"))[0] == 404
    assert (await get(FakeNode(), "/healthz", "POST"))[0] == 405
    for path in ("/nothing", "/api/nothing"):
        _, headers, body = await get(FakeNode(), path)
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
    assert json.loads(body) == {"error": "NotFound", "message": "Not Found: GET /api/nothing"}
    code, headers, _ = await get(FakeNode(), "/api/status", "DELETE")
    assert (code, set(headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/api/status", "/nothing"])
async def test_a_name_that_is_not_the_nodes_is_told_nothing(path):
    """A page whose name resolves to this node would be of its origin, and read everything."""
    code, headers, body = await get(FakeNode(), path, headers=[(b"host", b"evil.example:4780")])
    assert code == 421
    assert body.startswith(b"this node is not known as 'evil.example'")
    assert b"--allow-host evil.example" in body
    assert headers["cache-control"] == "no-store"
    assert headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize("hosts", [{"evil.example"}, {"*"}])
async def test_names_may_be_allowed(hosts):
    code, _, _ = await get(FakeNode(), "/healthz", headers=[(b"host", b"Evil.example:80")], hosts=hosts)
    assert code == 200


async def test_one_wrong_name_among_several_is_enough():
    headers = [(b"host", b"localhost"), (b"host", b"evil.example")]
    assert (await get(FakeNode(), "/healthz", headers=headers))[0] == 421


async def test_a_bug_is_logged_in_full(caplog):
    code, _, body = await get(FakeNode(healthy=None), "/healthz")
    assert code == 500
    assert b"a bug" not in body
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
