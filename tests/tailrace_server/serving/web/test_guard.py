"""Whose requests over HTTP are answered: pages of other sites, tokens and certificates."""

import dataclasses

import pytest
from tests.tailrace_server.serving.secured import Secured
from tests.tailrace_server.serving.web.conftest import opened_web

PATH = "/feeds/orders/keys/k"
THEIRS = "https://evil.example"


@pytest.mark.parametrize("origin", [THEIRS, "null", "http://localhost:4780"])
async def test_a_page_of_another_site_writes_nothing(web, orders, origin):
    """A form or a script of it can send the request; a browser names the page that did."""
    answer = await web("PUT", PATH, b"v", origin=origin)
    assert (answer.code, answer.json["error"]) == (403, "Forbidden")
    assert "--http-origin" in answer.json["message"]
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert await orders.get(b"k") is None


async def test_a_page_of_another_site_reads_nothing(web, orders):
    await orders.put(b"k", b"secret")
    answer = await web("GET", PATH, origin=THEIRS)
    assert (answer.code, b"secret" in answer.body) == (403, False)
    assert (await web("OPTIONS", PATH, origin=THEIRS)).code == 405


async def test_a_page_of_the_node_itself_may_write(web, orders):
    assert (await web("PUT", PATH, b"v", origin="http://localhost")).code == 200


async def test_a_name_that_is_not_the_nodes_writes_nothing(web, orders):
    """DNS rebinding: the browser takes the node for the page's own server."""
    answer = await web("PUT", PATH, b"v", host="evil.example", origin="http://evil.example")
    assert answer.code == 421
    assert await orders.get(b"k") is None


async def test_a_page_that_the_operator_has_named(running, orders):
    async with opened_web(running.node, ["https://app.example"]) as web:
        asked = await web("OPTIONS", PATH, origin="https://app.example", access_control_request_method="PUT")
        assert asked.code == 204
        assert "PUT" in asked.headers["access-control-allow-methods"]
        assert "If-Match" in asked.headers["access-control-allow-headers"]
        answer = await web("PUT", PATH, b"v", origin="https://app.example")
        assert answer.code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "ETag" in answer.headers["access-control-expose-headers"]
        missing = await web("GET", "/feeds/orders/keys/none", origin="https://app.example")
        assert missing.headers["access-control-allow-origin"] == "https://app.example"
        assert (await web("OPTIONS", PATH, origin=THEIRS)).code == 403
        assert (await web("PUT", PATH, b"w", origin=THEIRS)).code == 403


@pytest.fixture
async def secured(run_node, node_config, monkeypatch):
    monkeypatch.setattr("tailrace_server.serving.addresses.PAUSE_SECONDS_MAX", 0.0)
    made = Secured(await run_node(dataclasses.replace(node_config, auth=True)))
    async with made.connect(made.admin) as client:
        for name in ("orders", "payments"):
            await client.create_feed(name, partitions=2)
    return made


async def test_a_token_has_its_role_its_feeds_and_its_keys(secured):
    async with opened_web(secured.running.node) as web:
        reader = {"authorization": f"Bearer {await secured.token('reader', 'read')}"}
        writer = {"authorization": f"Bearer {await secured.token('eu', 'write', feeds=['orders'], key_prefix=b'eu/')}"}
        own, other, elsewhere = "/feeds/orders/keys/eu/1", "/feeds/orders/keys/us/1", "/feeds/payments/keys/eu/1"
        assert (await web("PUT", own, b"v", **writer)).code == 200
        for path in (other, elsewhere):
            for method in ("GET", "PUT", "DELETE"):
                answer = await web(method, path, **writer)
                assert (answer.code, answer.json["error"]) == (403, "Forbidden"), (method, path)
        assert (await web("GET", own, **reader)).body == b"v"
        for method in ("PUT", "DELETE"):
            answer = await web(method, own, **reader)
            assert (answer.code, "reader" in answer.json["message"]) == (403, True)


async def test_a_token_that_was_revoked_has_no_more_rights(secured):
    async with opened_web(secured.running.node) as web:
        writer = {"authorization": f"Bearer {await secured.token('shop', 'write')}"}
        assert (await web("PUT", PATH, b"v", **writer)).code == 200
        async with secured.connect(secured.admin) as client:
            await client.revoke_token("shop")
        answer = await web("PUT", PATH, b"w", **writer)
        assert (answer.code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await web("PUT", PATH, b"w")).code == 401


async def test_a_bug_is_told_as_one_and_logged(web, orders, monkeypatch, caplog):
    monkeypatch.setattr("tailrace_server.serving.web.keys.has_tag", lambda *_: 1 / 0)
    await orders.put(b"k", b"v")
    answer = await web("GET", PATH)
    assert (answer.code, answer.json["error"]) == (500, "InternalError")
    assert "division by zero" in caplog.text
