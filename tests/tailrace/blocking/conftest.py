from __future__ import annotations

import pytest
from tests.processes.fixtures import (
    bad_network,
    contents,
    feed_name,
    node_process,
    secured_node,
    shared_node,
    start_node,
)

from tailrace import blocking

__all__ = ["bad_network", "contents", "feed_name", "node_process", "secured_node", "shared_node", "start_node"]


@pytest.fixture
def client(shared_node):
    with blocking.connect(shared_node.url) as client:
        yield client


@pytest.fixture
def feed(client, feed_name):
    return client.create_feed(feed_name, partitions=4)
