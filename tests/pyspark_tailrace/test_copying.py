"""A compact feed copied to another one: its snapshot is one micro-batch, however large it is."""

from __future__ import annotations

import random

import pytest
from pyspark.errors import StreamingQueryException
from tests.processes.program import SMALL_PARTS

from pyspark_tailrace.sink import StreamSink
from pyspark_tailrace.source import FORMAT, TailraceSource
from tailrace import blocking


class Copy:
    """A query from feed "orders" to feed "copy", which has one partition."""

    def __init__(self, spark, folder, url):
        self._spark = spark
        self._checkpoint = str(folder / "checkpoint")
        self._url = url

    def fill(self, rows):
        with blocking.connect(self._url) as client:
            feed = client.create_feed("orders", partitions=1)
            with feed.writer() as writer:
                for key, value in rows:
                    writer.put(key, value)

    def run(self, tasks, sink=FORMAT):
        """Until the copy has all that there is."""
        frame = self._spark.readStream.format(FORMAT).options(url=self._url, feed="orders").load()
        writer = frame.select("key", "value", "deleted").repartition(tasks).writeStream.format(sink)
        writer = writer.options(url=self._url, feed="copy", create_feed="true", partitions="1")
        query = writer.option("checkpointLocation", self._checkpoint).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()


class ForgetfulSink(StreamSink):
    """Its commit succeeds, and its driver fails before that is noted."""

    def commit(self, messages, batchId):
        super().commit(messages, batchId)
        raise RuntimeError("the commit fails")


class ForgetfulSource(TailraceSource):
    @classmethod
    def name(cls):
        return "forgetful"

    def streamWriter(self, schema, overwrite):
        return ForgetfulSink(super().streamWriter(schema, overwrite)._options)


@pytest.mark.long
def test_a_snapshot_of_more_than_a_part_is_copied_once(spark, tmp_path, start_node, contents):
    """Also if the commit is not noted: each time it comes in other pieces."""
    node = start_node(SMALL_PARTS)
    copy = Copy(spark, tmp_path, node.url)
    rows = [(b"%d" % number, b"value %d " % number * 8) for number in range(400)]
    copy.fill(rows)
    spark.dataSource.register(ForgetfulSource)
    for tasks in (2, 1):
        with pytest.raises(StreamingQueryException, match="the commit fails"):
            copy.run(tasks, "forgetful")
    copy.run(3)
    history = contents(node.url, "copy").history()
    assert history == {key: [value] for key, value in rows}


@pytest.mark.long
def test_a_snapshot_of_more_than_a_record_is_copied_once(spark, tmp_path, start_node, contents):
    """With the parts as large as they are: 80 MiB that do not compress."""
    node = start_node()
    copy = Copy(spark, tmp_path, node.url)
    rnd = random.Random(1)
    rows = [(b"%d" % number, rnd.randbytes(64 * 1024)) for number in range(80 * 16)]
    copy.fill(rows)
    spark.dataSource.register(ForgetfulSource)
    with pytest.raises(StreamingQueryException, match="the commit fails"):
        copy.run(2, "forgetful")
    copy.run(1)
    with blocking.connect(node.url) as client:
        assert [partition.high_seq for partition in client.feed("copy").partitions()] == [len(rows)]
    assert contents(node.url, "copy").state() == dict(rows)
