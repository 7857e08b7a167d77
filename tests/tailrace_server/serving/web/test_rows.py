"""POST of rows over HTTP."""

import dataclasses
import json

import pytest
from starlette.datastructures import QueryParams
from tests.tailrace_server.serving.secured import Secured
from tests.tailrace_server.serving.web.conftest import opened_web

import tailrace
from tailrace_server.serving.board.pages import BadRequest
from tailrace_server.serving.web import rows as module
from tailrace_server.serving.web.rows import Numbered, numbered_of

PATH = "/feeds/orders"


def lines(*rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


async def values(feed, *keys):
    return [None if item is None else item.value for item in await feed.get_many(keys)]


async def test_rows_are_written(web, orders):
    await orders.put(b"old", b"v")
    body = lines(
        {"key": "a", "value": "1"},
        {"key": "b", "value": {"city": "Rome"}},
        {"key": "/w==", "key_encoding": "base64", "value": "AP8=", "value_encoding": "base64"},
        {"key": "old", "deleted": True, "value": None},
    )
    answer = await web("POST", PATH, body)
    assert (answer.code, answer.json["rows"]) == (200, 4)
    assert sum(each["last_seq"] - each["first_seq"] + 1 for each in answer.json["written"]) == 4
    assert await values(orders, b"a", b"b", b"\xff", b"old") == [b"1", b'{"city":"Rome"}', b"\x00\xff", None]


async def test_rows_have_ttls(web, orders):
    body = lines({"key": "a", "value": "1", "ttl": 3_600}, {"key": "b", "value": "1"}, {"key": "c", "value": "1"})
    assert (await web("POST", PATH, body)).code == 200
    found = {}
    async with orders.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                columns = event.block.columns()
                found.update(zip(columns.keys(), columns.ttls(), strict=True))
    assert found == {b"a": 3_600, b"b": 0, b"c": 0}
    wrong = (
        ({"key": "d", "value": "1", "ttl": 0}, "line 1: 'ttl': ttl is 0"),
        ({"key": "d", "value": "1", "ttl": "1h"}, "line 1: 'ttl': "),
        ({"key": "d", "deleted": True, "ttl": 1}, "line 1: 'ttl' is 1, and the key is deleted"),
    )
    for row, says in wrong:
        answer = await web("POST", PATH, lines(row))
        assert (answer.code, answer.json["error"]) == (400, "BadRecord")
        assert says in answer.json["message"]
    answer = await web("POST", f"{PATH}?producer=p&batch=0", body)
    assert answer.code == 400
    assert "takes no ttls" in answer.json["message"]


async def test_the_rows_of_a_partition_are_one_block(web, orders):
    answer = await web("POST", PATH, lines(*({"key": str(number), "value": "v"} for number in range(100))))
    assert sorted(each["partition"] for each in answer.json["written"]) == [0, 1]
    async with orders.consume(until="now") as stream:
        blocks = [event async for event in stream if isinstance(event, tailrace.Mutations)]
    assert len(blocks) == 2


async def test_a_row_that_cannot_be_used_is_named_and_nothing_is_written(web, orders):
    for body, says in (
        (b'{"key": "a", "value": "1"}\nnonsense\n', "line 2: this is not JSON"),
        (b'{"key": "a", "value": "1"}\n\n{"value": "1"}\n', "line 3: there is no field 'key'"),
        (b'{"key": "a", "value": "1"}\n[1]\n', "line 2: an object is needed"),
        (b'{"key": "a", "value": "1"}\n{"key": "", "value": "1"}', "line 2: the key has 0 bytes"),
        (b'{"key": "a", "value": "1"}\n\xff\n', "line 2: this is not UTF-8"),
    ):
        answer = await web("POST", PATH, body)
        assert (answer.code, answer.json["error"]) == (400, "BadRecord")
        assert says in answer.json["message"]
    assert await values(orders, b"a") == [None]


async def test_no_rows(web, orders):
    answer = await web("POST", PATH)
    assert (answer.code, answer.json) == (200, {"rows": 0, "written": []})


async def test_a_batch_of_a_producer_is_written_once(web, orders):
    body = lines({"key": "a", "value": "1"}, {"key": "b", "value": "2"}, {"key": "c", "value": "3"})
    first = await web("POST", f"{PATH}?producer=app-1&batch=0", body)
    assert (first.code, first.json["rows"], first.json["present"]) == (200, 3, [])
    await orders.put(b"a", b"newer")
    again = await web("POST", f"{PATH}?producer=app-1&batch=0", body)
    partitions = sorted(each["partition"] for each in first.json["written"])
    assert (again.code, again.json["written"], again.json["present"]) == (200, [], partitions)
    assert await values(orders, b"a", b"b") == [b"newer", b"2"]


async def test_numbers_of_a_producer_rise(web, orders):
    for batch in (3, 5):
        body = lines({"key": "a", "value": str(batch)})
        assert (await web("POST", f"{PATH}?producer=app-1&batch={batch}", body)).code == 200
    behind = await web("POST", f"{PATH}?producer=app-1&batch=4", lines({"key": "a", "value": "4"}))
    assert (behind.code, behind.json["error"], behind.json["first_batch"]) == (409, "BatchBehind", 6)
    changed = await web("POST", f"{PATH}?producer=app-1&batch=5", lines({"key": "a", "value": "other"}))
    assert (changed.code, changed.json["error"], changed.json["first_batch"]) == (409, "BatchChanged", 6)
    assert (await web("POST", f"{PATH}?producer=app-2&batch=0", lines({"key": "b", "value": "1"}))).code == 200
    assert await values(orders, b"a", b"b") == [b"5", b"1"]


async def test_a_batch_is_written_once_across_a_crash(running, orders):
    body = lines({"key": "a", "value": "1"})
    async with opened_web(running.node) as web:
        assert (await web("POST", f"{PATH}?producer=app-1&batch=0", body)).code == 200
    await running.kill()
    await running.start()
    async with opened_web(running.node) as web:
        again = await web("POST", f"{PATH}?producer=app-1&batch=0", body)
        assert (again.code, again.json["written"]) == (200, [])


async def test_too_many_rows_and_bytes(web, orders, monkeypatch):
    monkeypatch.setattr(module, "ROWS_MAX", 2)
    monkeypatch.setattr(module, "BODY_BYTES_MAX", 200)
    row = {"key": "a", "value": "1"}
    assert (await web("POST", PATH, lines(row, row))).code == 200
    for body in (lines(row, row, row), b" " * 201):
        answer = await web("POST", PATH, body)
        assert (answer.code, answer.json["error"]) == (413, "TooLarge")
    announced = await web("POST", PATH, content_length="201")
    assert announced.code == 413


async def test_too_many_empty_lines(web, orders, monkeypatch):
    """They would hold the loop, and others have no turn between them."""
    monkeypatch.setattr(module, "LINES_MAX", 3)
    assert (await web("POST", PATH, b'{"key": "a", "value": "1"}\n\n\n')).code == 200
    answer = await web("POST", PATH, b"\n" * 4)
    assert (answer.code, answer.json["error"]) == (413, "TooLarge")


async def test_a_compressed_body_is_refused(web, orders):
    answer = await web("POST", PATH, b"x", content_encoding="gzip")
    assert (answer.code, answer.json["error"]) == (415, "NotJsonLines")


async def test_a_feed_that_does_not_exist(web):
    body = lines({"key": "a", "value": "1"})
    for query in ("", "?producer=a&batch=0"):
        answer = await web("POST", f"/feeds/none{query}", body)
        assert (answer.code, answer.json["error"]) == (404, "UnknownFeed")


@pytest.mark.parametrize("query", ["level=disk", "level=memory"])
async def test_levels(web, orders, query):
    assert (await web("POST", f"{PATH}?{query}", lines({"key": "a", "value": "1"}))).code == 200


async def test_a_producer_of_a_token_with_a_prefix(run_node, node_config):
    secured = Secured(await run_node(dataclasses.replace(node_config, auth=True)))
    async with secured.connect(secured.admin) as client, opened_web(secured.running.node) as web:
        await client.create_feed("orders", partitions=2)
        bearer = {"authorization": f"Bearer {await secured.token('eu', 'write', key_prefix=b'eu/')}"}
        body = lines({"key": "eu/1", "value": "1"})
        assert (await web("POST", f"{PATH}?producer=eu/app&batch=0", body, **bearer)).code == 200
        assert (await web("POST", f"{PATH}?producer=app&batch=0", body, **bearer)).code == 403
        for query in ("", "?producer=eu/app&batch=1"):
            assert (await web("POST", PATH + query, lines({"key": "us/1", "value": "1"}), **bearer)).code == 403


@pytest.mark.parametrize(
    "query",
    [
        "producer=a",
        "batch=0",
        "producer=&batch=0",
        "producer=a%0a&batch=0",
        "producer=a&batch=-1",
        "producer=a&batch=x",
        f"producer=a&batch={2**63}",
        f"producer={'a' * 201}&batch=0",
        "producer=a&batch=0&level=disk",
    ],
)
def test_wrong_numbers(query):
    with pytest.raises(BadRequest):
        numbered_of(QueryParams(query))


def test_numbers():
    assert numbered_of(QueryParams("producer=a&batch=7")) == Numbered("a", 7)
    assert numbered_of(QueryParams("level=disk")) is None
