"""The list of feeds over HTTP, and new ones."""

import dataclasses
import logging

import pytest
from tests.tailrace_server.serving.secured import Secured
from tests.tailrace_server.serving.web.conftest import opened_web

from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.web.feeds import SETTINGS, parse_settings


async def test_a_feed_is_made_and_listed(web, client):
    made = await web("PUT", "/feeds/orders", b'{"partitions": 3, "retention": "history"}')
    assert (made.code, made.json["partitions"], made.json["retention"]) == (200, 3, "history")
    assert (await web("GET", "/feeds")).json == {"feeds": [made.json]}
    [info] = await client.feeds()
    assert info.feed_id.hex() == made.json["feed_id"]


async def test_a_feed_that_exists(web, orders):
    same = await web("PUT", "/feeds/orders")
    assert (same.code, same.json["partitions"]) == (200, 2)
    other = await web("PUT", "/feeds/orders", b'{"partitions": 5}')
    assert (other.code, other.json["error"]) == (409, "FeedExists")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("orders", b"x"),
        ("orders", b"[1]"),
        ("orders", b'{"partitions": [1]}'),
        ("orders", b'{"partitions": "a"}'),
        ("orders", b'{"partitions": true}'),
        ("orders", b'{"partitions": 0}'),
        ("orders", b'{"nonsense": 1}'),
        ("orders", b'{"retention": "all"}'),
        ("Orders%20", b"{}"),
    ],
)
async def test_wrong_settings(web, client, name, body):
    answer = await web("PUT", f"/feeds/{name}", body)
    assert 400 <= answer.code < 500, answer.json
    assert await client.feeds() == []


def test_settings():
    assert {"partitions", "retention", "level"} <= set(SETTINGS)
    assert parse_settings(b"") == {}
    with pytest.raises(BadRequest, match="no setting 'a'"):
        parse_settings(b'{"a": 1}')


async def test_only_an_admin_makes_feeds_and_each_token_sees_its_own(run_node, node_config, caplog):
    caplog.set_level(logging.INFO, "tailrace.audit")
    secured = Secured(await run_node(dataclasses.replace(node_config, auth=True)))
    async with opened_web(secured.running.node) as web:
        admin = {"authorization": f"Bearer {secured.admin}"}
        for name in ("orders", "payments"):
            assert (await web("PUT", f"/feeds/{name}", **admin)).code == 200
        writer = {"authorization": f"Bearer {await secured.token('shop', 'write', feeds=['orders'])}"}
        refused = await web("PUT", "/feeds/other", **writer)
        assert (refused.code, refused.json["error"]) == (403, "Forbidden")
        assert [each["name"] for each in (await web("GET", "/feeds", **writer)).json["feeds"]] == ["orders"]
        assert (await web("GET", "/feeds")).code == 401
    lines = [record.getMessage() for record in caplog.records if record.name == "tailrace.audit"]
    assert any("at 127.0.0.1:" in line and "CREATE_FEED" in line and "payments" in line for line in lines)
    assert any("'shop'" in line and "refused: Forbidden" in line for line in lines)


async def test_each_error_is_a_json_object_with_a_known_name(web, orders):
    for method, path, code, error in (
        ("PUT", "/feeds", 405, "NotFound"),
        ("PUT", "/feeds/_new", 400, "BadRequest"),
    ):
        answer = await web(method, path, b"{}")
        assert (answer.code, answer.json["error"]) == (code, error)
