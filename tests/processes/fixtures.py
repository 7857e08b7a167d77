"""Fixtures with nodes in processes of their own, a network in front of them that breaks, and readers of feeds."""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import NamedTuple

import pytest
import trio

import tailrace

from .node import NodeProcess
from .proxy import BadNetwork


@pytest.fixture
def start_node(tmp_path):
    """Starts nodes, each over a directory of its own, with `Orders`."""
    nodes = []

    def start(orders=None):
        node = NodeProcess(tmp_path / f"node-{len(nodes)}", orders)
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def node_process(start_node):
    return start_node()


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory):
    """One node for all tests that neither stop it nor look at the whole of it; take ``feed_name``."""
    node = NodeProcess(tmp_path_factory.mktemp("shared-node"))
    node.start()
    yield node
    node.stop()


@pytest.fixture(scope="session")
def secured_node(tmp_path_factory):
    """One node that requires tokens, for all tests that do not stop it."""
    node = NodeProcess(tmp_path_factory.mktemp("secured-node"), options=["--auth"])
    node.start()
    yield node
    node.stop()


@pytest.fixture
def feed_name(request):
    """A name that no other test uses."""
    return f"t-{zlib.crc32(request.node.nodeid.encode()):08x}"


@pytest.fixture
def bad_network():
    """Makes a bad network in front of a node's port."""
    networks = []

    def start(port, seed=0):
        networks.append(BadNetwork(port, seed))
        return networks[-1]

    yield start
    for network in networks:
        network.close()


class Row(NamedTuple):
    partition: int
    seq: int
    key: bytes
    value: bytes | None


class Contents:
    """All rows and blocks of a feed, in order by partition."""

    def __init__(self, rows, blocks):
        self.rows = rows
        self.blocks = blocks

    def history(self):
        """Returns the values of each key, in order; None is a deletion."""
        found = defaultdict(list)
        for row in self.rows:
            found[row.key].append(row.value)
        return dict(found)

    def state(self):
        """Returns the present value of each key that has one."""
        return {key: values[-1] for key, values in self.history().items() if values[-1] is not None}


@pytest.fixture(scope="session")
def contents():
    """Reads a feed: ``contents(url, feed)`` returns its `Contents` as the node holds them; further options connect."""

    async def consume(url, feed, options):
        rows, blocks = [], []
        async with tailrace.connect(url, **options) as client, client.feed(feed).consume(until="now") as stream:
            async for event in stream:
                if isinstance(event, tailrace.Mutations):
                    rows += [Row(event.partition, m.seq, m.key, m.value) for m in event]
                    blocks.append(event.block)
        return Contents(rows, blocks)

    return lambda url, feed="orders", **options: trio.run(consume, url, feed, options)
