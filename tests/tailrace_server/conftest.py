"""The disk in memory, and connections that say anything at all, for every test of the server."""

from __future__ import annotations

import dataclasses

import pytest
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.serving.secured import Secured

import tailrace


@pytest.fixture(scope="session")
def memory_disk() -> type[MemoryDisk]:
    """The class, so that property tests make a new disk for each example."""
    return MemoryDisk


@pytest.fixture
async def feed_id(feed):
    return (await feed.resolve()).feed_id


@pytest.fixture
async def greeted(raw):
    """A connection that has said hello."""
    async with raw() as connection:
        yield await connection.hello()


@pytest.fixture
async def others_are_served(running):
    """Whatever a test does, the node serves another client afterwards, and its invariants hold."""
    yield
    async with tailrace.connect(running.url, retry_for=60) as other:
        after = await other.create_feed("afterwards", partitions=2)
        version = await after.put(b"k", b"v")
        assert (await after.get(b"k")).version == version
    running.node.check()


@pytest.fixture
async def secured(run_node, node_config):
    """A node that requires tokens, with an admin token."""
    node = Secured(await run_node(dataclasses.replace(node_config, auth=True)))
    async with node.connect(node.admin) as client:
        await client.create_feed("orders", partitions=4)
        await client.create_feed("payments", partitions=4)
    return node
