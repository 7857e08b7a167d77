"""What a token for some feeds is told: no answer has the name of another feed."""

import json

import pytest
from tests.tailrace_server.raw_requests import KEY, block_of, write
from tests.tailrace_server.serving.secured import ask
from tests.tailrace_server.serving.test_bearers import get

from tailrace.cli.status import render
from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving.console import http_listener
from tailrace_server.serving.narrowed_status import _PLAIN, HIDDEN, narrowed
from tailrace_server.serving.status import status_head
from tailrace_server.upkeep.compactor import Compactor
from tailrace_server.upkeep.flusher import Flusher

SECRET = "payments"
# A reason as the flusher, the compactor and the replication give them.
TEXT = f"partition 3 of feed {SECRET} cannot be read"


def planted(value):
    """The same with the secret in every free text, and in one more row of every list."""
    if isinstance(value, dict):
        return {key: member if key in _PLAIN else planted(member) for key, member in value.items()}
    if isinstance(value, list):
        return [*map(planted, value), TEXT, {"feed": SECRET, "partition": 3, "why": TEXT}, {"why": TEXT}]
    return TEXT if value is None or isinstance(value, str) else value


async def test_a_status_full_of_another_feed_tells_nothing_of_it(secured):
    head = planted(status_head(secured.running.node.services))
    head["replication"]["failing"].append({"feed": "orders", "partition": 1, "why": "of the own feed"})
    shown = narrowed(head, lambda name: name == "orders")
    assert SECRET not in json.dumps(shown)
    assert shown["failure"] == HIDDEN
    assert {"feed": "orders", "partition": 1, "why": "of the own feed"} in shown["replication"]["failing"]
    assert shown.keys() == head.keys()
    assert shown["replication"].keys() == head["replication"].keys()


@pytest.fixture
async def broken(secured, monkeypatch):
    """A node whose disk reports the other feed's troubles."""
    services = secured.running.node.services
    services.storage.damages[f"/data/{SECRET}.segment"] = TEXT
    monkeypatch.setattr(Flusher, "failure", TEXT)
    monkeypatch.setattr(Compactor, "failure", TEXT)
    async with secured.connect(secured.admin) as client:
        await client.feed(SECRET).put(b"k", b"v")
    return secured


PATHS = (
    *("/", "/healthz", "/readyz", "/metrics", f"/metrics?partitions={SECRET[:4]}", "/api/status", "/api/console"),
    *("/api/feeds", "/api/feeds/orders", "/api/feeds/orders/partitions/0", "/api/consumers", "/api/nothing"),
)


async def test_no_answer_over_http_names_another_feed(broken):
    token = await broken.token("shop", "write", feeds=["orders"])
    async with http_listener(broken.running.node, ("127.0.0.1", 0)) as address:
        for path in PATHS:
            for given in (token, None):
                code, body = await get(address, path, given)
                assert SECRET not in body, (path, code)
        assert HIDDEN in (await get(address, "/api/status", token))[1]
        assert (await get(address, "/healthz"))[0] == 503
        assert TEXT in (await get(address, "/api/status", broken.admin))[1]


async def test_no_answer_of_a_frame_names_another_feed(broken):
    token = await broken.token("shop", "write", feeds=["orders"])
    async with broken.connect(broken.admin) as client:
        feed_id = (await client.feed(SECRET).resolve()).feed_id
        own_id = (await client.feed("orders").resolve()).feed_id
    async with (
        broken.connect(broken.admin) as admin,
        admin.feed(SECRET).consume(),
        broken.raw(token) as connection,
    ):
        answers = [await ask(connection, opcode, {}) for opcode in (Opcode.STATUS, Opcode.LIST_FEEDS)]
        answers.append(await ask(connection, Opcode.PARTITIONS, {"name": "orders"}))
        for number in (feed_id, own_id, bytes(16)):
            await connection.send(encode_frame(Opcode.WRITE, write(number, block_of(KEY)), 5))
            answers.append(await connection.receive())
        assert all(SECRET.encode() not in bytes(getattr(each, "body", b"")) for each in answers)
        assert all(SECRET not in str(each) for each in answers)
        await connection.send(encode_frame(Opcode.NOOP))


async def test_a_limited_token_can_read_the_status(broken):
    token = await broken.token("shop", "read", feeds=["orders"])
    async with broken.connect(token) as client:
        status = await client.status()
    assert status.details["failure"] == HIDDEN


async def test_a_narrowed_status_can_be_shown(secured):
    head = narrowed(status_head(secured.running.node.services), lambda name: False)
    assert render({**head, "feeds": []}) is not None


async def test_a_token_for_all_feeds_is_told_all(broken):
    async with broken.connect(await broken.token("reader", "read", key_prefix=b"eu/")) as client:
        assert TEXT in (await client.status()).details["failure"]
