"""What is answered over HTTP, without a socket."""

from __future__ import annotations

import json
import logging

import pytest
import trio

from tailrace_server.console.app import make_app

STATUS = {
    "healthy": True,
    "failure": None,
    "software": "tailrace 1",
    "node_id": "ab",
    "data": "/d<script>",
    "seq": 2**60,
}


class FakeNode:
    def __init__(self, **changes):
        self._status = {**STATUS, **changes}

    def status(self):
        if self._status["healthy"] is None:
            raise LookupError("a bug")
        return self._status


async def get(node, path, method="GET"):
    """Status code, headers and body of an answer."""
    sent = []

    async def receive():
        await trio.sleep_forever()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": [], "http_version": "1.1"}
    await make_app(node)(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent)


async def test_health_of_a_healthy_node():
    code, _, body = await get(FakeNode(), "/healthz")
    assert (code, body) == (200, b"ok\n")


async def test_health_says_what_ails_the_node():
    code, _, body = await get(FakeNode(healthy=False, failure="the disk is gone"), "/healthz")
    assert (code, body) == (503, b"the disk is gone\n")


async def test_status_is_the_nodes_own():
    code, headers, body = await get(FakeNode(), "/api/status")
    assert (code, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == STATUS


async def test_the_page_points_to_both_and_escapes():
    code, headers, body = await get(FakeNode(), "/")
    assert (code, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'href="/healthz"' in body
    assert b'href="/api/status"' in body
    assert b"/d&lt;script&gt;" in body


@pytest.mark.parametrize("path", ["/", "/healthz", "/api/status"])
async def test_no_answer_is_kept_or_given_to_other_origins(path):
    _, headers, _ = await get(FakeNode(), path)
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers
    assert "default-src 'none'" in headers["content-security-policy"]


async def test_other_paths_and_methods():
    assert (await get(FakeNode(), "/nothing"))[0] == 404
    assert (await get(FakeNode(), "/healthz", "POST"))[0] == 405


async def test_a_bug_is_logged_in_full(caplog):
    code, _, body = await get(FakeNode(healthy=None), "/healthz")
    assert code == 500
    assert b"a bug" not in body
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
