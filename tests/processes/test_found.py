"""Bugs that runs with real processes have found, each reduced to its few steps."""

from __future__ import annotations

import contextlib

import pytest

import tailrace
from tailrace import Mutations
from tailrace_server.config import Config
from tailrace_server.journal.clean import CLEAN_NAME
from tailrace_server.node.start import open_node

pytestmark = pytest.mark.slow


@contextlib.asynccontextmanager
async def opened(data):
    """A client of a node over ``data``, whose last stop counts as unclean."""
    (data / CLEAN_NAME).unlink(missing_ok=True)
    async with open_node(Config(str(data), ("127.0.0.1", 0), None, None)) as node:
        host, port = node.listening
        async with tailrace.connect(f"tailrace://{host}:{port}") as client:
            yield client


async def test_a_version_keeps_its_branch_after_a_restart(tmp_path):
    async with opened(tmp_path) as client:
        feed = await client.create_feed("orders", partitions=1)
        first = await feed.put(b"a", b"1")
    async with opened(tmp_path) as client:
        feed = client.feed("orders")
        second = await feed.put(b"b", b"2")
        assert first.branch != second.branch
        async with feed.consume(until="now") as stream:
            branches = [event.branch async for event in stream if isinstance(event, Mutations)]
        assert branches == [first.branch, second.branch]
        versions = [item.version async for item in feed.items()]
        assert versions == [first, second]
        await feed.put(b"a", b"3", if_version=versions[0])
