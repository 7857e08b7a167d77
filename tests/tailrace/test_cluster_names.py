"""A client whose URL names a cluster uses no node of another one."""

from __future__ import annotations

import dataclasses
import math

import pytest
import trio
from tests.tailrace.asyncio.bridge import run_in_thread

import tailrace
from tailrace import blocking
from tailrace.link.address import parse_address
from tailrace.trio.request import ask
from tailrace.wire.opcodes import Opcode


@pytest.fixture
async def named(running):
    """The URL of a node whose cluster is called "shop"."""
    running.node.services.config = dataclasses.replace(running.node.services.config, cluster="shop")
    return running.url


async def test_the_cluster_that_the_url_names_is_used(named):
    async with tailrace.connect(f"{named}/shop") as client:
        await client.create_feed("orders")
        assert (await client.status()).details["cluster"] == "shop"
    async with tailrace.connect(named) as client:
        assert [feed.name for feed in await client.feeds()] == ["orders"]


OTHERS = [("other", "is of cluster 'shop', and the URL names cluster 'other'")]


@pytest.mark.parametrize(("name", "text"), OTHERS)
async def test_another_cluster_is_refused(named, name, text):
    with pytest.raises(tailrace.Unreachable, match=text):
        async with tailrace.connect(f"{named}/{name}", connect_timeout=2):
            raise AssertionError("it is connected")

    def connect():
        with blocking.connect(f"{named}/{name}", connect_timeout=2):
            raise AssertionError("it is connected")

    with pytest.raises(tailrace.Unreachable, match=text):
        await trio.to_thread.run_sync(connect)

    async def connect_under_asyncio():
        async with tailrace.asyncio.connect(f"{named}/{name}", connect_timeout=2):
            raise AssertionError("it is connected")

    with pytest.raises(tailrace.Unreachable, match=text):
        await run_in_thread(connect_under_asyncio)


async def test_a_cluster_without_a_name_is_refused_too(running):
    with pytest.raises(tailrace.Unreachable, match="a cluster without a name"):
        async with tailrace.connect(f"{running.url}/shop", connect_timeout=2):
            raise AssertionError("it is connected")


async def test_a_question_to_one_node_is_not_asked_of_another_cluster(named, monkeypatch):
    address = parse_address(named.removeprefix("tailrace://"))
    answer = await ask(address, Opcode.STATUS, {}, timeout_s=math.inf, cluster="shop")
    assert answer["cluster"] == "shop"
    with pytest.raises(tailrace.Unreachable, match="is of cluster 'shop'") as caught:
        await ask(address, Opcode.CREATE_FEED, {"name": "new", "feed_id": "0" * 32}, timeout_s=5, cluster="other")
    assert caught.value.outcome == "not sent"
    async with tailrace.connect(named) as client:
        assert await client.feeds() == []
