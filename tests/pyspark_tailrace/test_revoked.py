"""A token that is revoked in the middle of a job ends it with an error that says so; with another one it goes on."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from tests.pyspark_tailrace.jobs import Job

from pyspark_tailrace.source import FORMAT
from tailrace import blocking

pytestmark = [pytest.mark.long, pytest.mark.slow]
PARTITIONS = 2
ROWS = 400
# More than Spark and the connections of its tasks hold between the feed and the gate.
VALUE_BYTES = 128 * 1024
FORBIDDEN = "tailrace.errors.Forbidden: "
# A node ends the connections of a revoked token within a second.
REVOKED_SECONDS = 1.5
SECONDS_MAX = 60.0
# The connections of a job after its token was revoked: those of its driver, its tasks, and one more of each. To retry
# for as long as the library does by default would take more of them.
TRIES_MAX = 8


class Step:
    """A step of a query that hands on its first batch, and the others once its gate is open. Spark pickles it."""

    def __init__(self, folder):
        self.came, self.open = str(folder / "came"), str(folder / "open")

    def __call__(self, batches):
        for batch in batches:
            yield batch
            Path(self.came).touch()
            while not os.path.exists(self.open):
                time.sleep(0.01)


class Gate:
    """Holds a query at its first batch, and counts its connections after its token was revoked."""

    def __init__(self, folder, relay):
        self.step = Step(folder)
        self._relay = relay
        self._connections = 0  # before the token was revoked

    @property
    def tries(self):
        """The connections since the token was revoked."""
        return self._relay.connections - self._connections

    def revoke(self, client, name):
        """Revokes a token when the first batch has come, and opens the gate when its connections have ended."""
        give_up = time.monotonic() + SECONDS_MAX
        while not os.path.exists(self.step.came):
            assert time.monotonic() < give_up
            time.sleep(0.01)
        self._connections = self._relay.connections
        client.revoke_token(name)
        time.sleep(REVOKED_SECONDS)
        Path(self.step.open).touch()


@pytest.fixture
def relay(secured_node, bad_network):
    """The way of a job to the node, which counts its connections."""
    relay = bad_network(secured_node.port)
    relay.cutting = False
    return relay


@pytest.fixture
def gate(spark, tmp_path, relay):
    """A gate that gets few rows in a batch."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, 5)
    yield Gate(tmp_path, relay)
    spark.conf.set(name, before)


@pytest.fixture
def admin(secured_node):
    """A client that may do all."""
    token = (secured_node.data / "admin.token").read_text().strip()
    with blocking.connect(secured_node.url, token=token) as client:
        yield client


@pytest.fixture
def token(admin, feed_name):
    """Makes tokens for this test only: a function that gives the name and the secret."""
    numbers = itertools.count()

    def make(role):
        name = f"{feed_name}-{next(numbers)}"
        return name, admin.create_token(name, role=role)

    return make


@pytest.fixture
def filled(admin, feed_name):
    """A history with its rows: a task reads mutations as they come. The state it gives only after it has read all."""
    with admin.create_feed(feed_name, partitions=PARTITIONS, retention="history").writer() as writer:
        for number in range(ROWS):
            writer.put(b"%d" % number, os.urandom(VALUE_BYTES))
    return feed_name


@contextlib.contextmanager
def refused(secret, gate):
    """The body's job ends with Forbidden, and nothing that it tells has the secret. Gives the error's text."""
    told = []
    with pytest.raises(PySparkException) as caught:
        yield told
    assert gate.tries <= TRIES_MAX, "it has retried what cannot succeed"
    told.append("".join(traceback.format_exception(caught.value)))
    assert FORBIDDEN in told[-1]
    assert "revoked" in told[-1]
    assert not any(secret in text for text in told)


def end_by_revoking(start, secret, gate, admin, name):
    """Starts a query, and waits until it has been refused. Its plan does not have the secret."""
    with refused(secret, gate) as told:
        query = start(secret)
        gate.revoke(admin, name)
        try:
            query.awaitTermination()
        finally:
            told.append(query._jsq.explainInternal(True))


def test_a_streaming_read_goes_on_with_another_token(spark, tmp_path, relay, filled, admin, token, gate):
    (name, first), (_, second) = token("read"), token("read")
    out = str(tmp_path / "out")

    def start(secret):
        frame = spark.readStream.format(FORMAT).options(url=relay.url, feed=filled, token=secret).load()
        frame = frame.select("key", "value").mapInArrow(gate.step, "key BINARY, value BINARY").select("key")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start(out)

    end_by_revoking(start, first, gate, admin, name)
    start(second).awaitTermination()
    assert Counter(row.key for row in spark.read.parquet(out).collect()) == dict.fromkeys(keys(), 1)


def test_a_batch_read_ends_and_another_one_reads_all(spark, relay, filled, admin, token, gate):
    (name, first), (_, second) = token("read"), token("read")

    def frame(secret):
        read = spark.read.format(FORMAT).options(url=relay.url, feed=filled, token=secret, read="mutations")
        return read.load().select("key", "value").mapInArrow(gate.step, "key BINARY, value BINARY").select("key")

    revoking = threading.Thread(target=gate.revoke, args=(admin, name))
    revoking.start()
    with refused(first, gate) as told:
        reading = frame(first)
        told.append(reading._jdf.queryExecution().toString())
        reading.collect()
    revoking.join()
    assert Counter(row.key for row in frame(second).collect()) == dict.fromkeys(keys(), 1)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_streaming_write_goes_on_with_another_token(
    spark, tmp_path, secured_node, relay, feed_name, contents, admin, token, gate, delivery
):
    (name, first), (_, second) = token("admin"), token("admin")
    job = Job(spark, tmp_path, relay.url, PARTITIONS)
    for file in range(4):
        of_file = keys()[file::4]
        job.add_file(key=of_file, value=[os.urandom(1_000) for _ in of_file])

    def start(secret):
        rows = job.frame().repartition(2).mapInArrow(gate.step, "key BINARY, value BINARY")
        return job.start(rows, feed=feed_name, token=secret, delivery=delivery)

    end_by_revoking(start, first, gate, admin, name)
    start(second).awaitTermination()
    written = Counter(row.key for row in contents(secured_node.url, feed_name, token=second).rows)
    assert written.keys() == set(keys()), "a row is lost"
    assert delivery == "at_least_once" or set(written.values()) == {1}


def keys():
    return [b"%d" % number for number in range(ROWS)]
