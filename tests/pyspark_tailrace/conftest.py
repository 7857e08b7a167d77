"""A Spark session for all tests that ask for one; those are slow, by that alone."""

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

from pyspark_tailrace import connections, local_session

__all__ = ["bad_network", "contents", "feed_name", "node_process", "secured_node", "shared_node", "start_node"]

SPARK_CONFIG = {
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": 2,
    # Nothing here runs for so long that a better compiler or another collector would pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    warehouse = tmp_path_factory.mktemp("spark-warehouse").as_uri()
    session = local_session(
        master="local[2]", app_name="tests", config=SPARK_CONFIG | {"spark.sql.warehouse.dir": warehouse}
    )
    yield session
    session.stop()


@pytest.fixture
def no_connections():
    """In the end no connection is left for another task of this process."""
    yield
    while connections._connections:
        connections._connections.popitem()[1].client.close()
