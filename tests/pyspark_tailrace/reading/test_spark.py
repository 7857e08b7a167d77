"""What Spark itself makes of the source: queries with checkpoints, batch jobs with filters, and how errors are told."""

from __future__ import annotations

import json

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions as F

from pyspark_tailrace import decode
from pyspark_tailrace.source import FORMAT
from pyspark_tailrace.versions import HAS_READ_LIMITS
from tailrace import blocking

ROWS = 600


@pytest.fixture
def write(shared_node, feed_name):
    """A function that writes rounds of changes to a feed of that name."""

    def write(retention, rounds=1, rows=ROWS, first=0):
        with blocking.connect(shared_node.url) as client:
            feed = client.create_feed(feed_name, partitions=4, retention=retention)
            for number in range(rounds):
                with feed.writer() as writer:
                    for key in range(first, first + rows):
                        writer.put(b"%05d" % key, json.dumps({"n": key, "round": number}).encode())

    return write


@pytest.fixture
def options(shared_node, feed_name):
    return {"url": shared_node.url, "feed": feed_name, "retry_for": "60"}


@pytest.fixture
def run(spark, options, tmp_path):
    """Runs a query over all there is; gives the rows of each micro-batch, and the query's progress."""

    def run(**more):
        batches = {}

        def keep(frame, batch_id):
            batches[batch_id] = sorted(map(tuple, frame.select("partition", "seq", "key", "value").collect()))

        known = -1
        while known < len(batches):
            known = len(batches)
            stream = spark.readStream.format(FORMAT).options(**options | more).load()
            writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            finally:
                query.stop()
            if HAS_READ_LIMITS:
                break  # earlier versions end after one micro-batch
        return batches, query.recentProgress

    return run


def test_stream_goes_on_from_its_checkpoint(run, write, tmp_path):
    """And a micro-batch whose end is in the checkpoint, but not that it was done, is the same again."""
    write("history")
    batches, progress = run(maxRowsPerTrigger="250")
    assert [len(rows) for rows in batches.values()] == [250, 250, 100]
    if HAS_READ_LIMITS:
        assert json.loads(progress[0].sources[0].latestOffset)["behind"] == 350
    for name in ("commits/2", "commits/.2.crc"):
        (tmp_path / "checkpoint" / name).unlink()
    write("history", rows=50, first=ROWS)
    again, _ = run(minPartitions="7")
    assert again[2] == batches[2]
    assert len(again[3]) == 50
    rows = [row for rows in (batches | again).values() for row in rows]
    assert len({(partition, seq) for partition, seq, _, _ in rows}) == len(rows) == ROWS + 50


def test_from_feed_to_feed(spark, options, write, tmp_path, contents, shared_node):
    write("compact", rounds=2)
    stream = (
        spark.readStream.format(FORMAT).options(**options).schema("key BINARY, value BINARY, deleted BOOLEAN").load()
    )
    target = options["feed"] + "-copy"
    writer = stream.writeStream.format(FORMAT).options(**options | {"feed": target, "create_feed": "true"})
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    wanted = contents(shared_node.url, options["feed"]).state()
    assert contents(shared_node.url, target).state() == wanted
    assert len(wanted) == ROWS


def test_state_and_mutations(spark, options, write):
    write("history", rounds=3)
    frame = spark.read.format(FORMAT).options(**options).load()
    assert frame.dtypes == [
        ("partition", "int"),
        ("seq", "bigint"),
        ("key", "binary"),
        ("value", "binary"),
        ("deleted", "boolean"),
        ("timestamp", "timestamp"),
    ]
    decoded = decode(frame, "n INT, round INT")
    assert decoded.where("value.round = 2").count() == ROWS
    assert decoded.agg(F.sum("value.n")).collect()[0][0] == sum(range(ROWS))
    mutations = spark.read.format(FORMAT).options(**options, read="mutations", minPartitions="9").load()
    assert mutations.rdd.getNumPartitions() >= 9
    assert mutations.select("partition", "seq").distinct().count() == 3 * ROWS


@pytest.mark.parametrize("retention", ["history", "compact"])
def test_segments_and_the_stream_have_the_same_rows(spark, options, write, tmp_path, retention):
    """Several tasks read one partition of a history; a frame that is computed again has the same rows."""
    write(retention, rounds=3)
    with blocking.connect(options["url"]) as client:
        client.feed(options["feed"]).fetch(tmp_path / "copy")  # flushes
    write(retention, rows=50)

    def rows(frame):
        return sorted(map(tuple, frame.collect()))

    for more in ({"read": "mutations"}, {"read": "state"}, {"read": "mutations", "key_prefix": "0001"}):
        frames = {
            catch_up: spark.read.format(FORMAT).options(**options, **more, minPartitions="9", catch_up=catch_up).load()
            for catch_up in ("segments", "stream", "auto")
        }
        wanted = rows(frames["stream"])
        assert rows(frames["segments"]) == rows(frames["auto"]) == wanted
        if more == {"read": "mutations"} and retention == "history":
            assert frames["segments"].rdd.getNumPartitions() >= 9
            assert len(wanted) == 3 * ROWS + 50
            write(retention, rows=50)
            assert rows(frames["segments"]) == wanted, "a frame keeps its plan"
    few = spark.read.format(FORMAT).options(**options, catch_up="segments").schema("key BINARY").load()
    assert few.where(F.col("key") < b"00100").distinct().count() == 100


def test_decoding(spark):
    frame = spark.createDataFrame([(b'{"a": 1}',), (None,), (b"no json",)], "value BINARY")
    assert [row.value for row in decode(frame, "a INT").collect()] == [(1,), None, (None,)]
    with pytest.raises((PySparkException, Py4JJavaError), match=r"(?i)malformed"):
        decode(frame, "a INT", options={"mode": "FAILFAST"}).collect()


def test_a_frame_that_was_filtered_can_be_used_again(spark, options, write):
    """Also in a session that lets sources written in Python take filters, and after a filter, a union and a join."""
    write("compact")
    setting = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(setting, "true")
    try:
        frame = spark.read.format(FORMAT).options(**options).load()
        counts = {row.partition: row["count"] for row in frame.groupBy("partition").count().collect()}
        for id, count in counts.items():
            assert frame.where(F.col("partition") == id).count() == count
            assert frame.count() == ROWS
        parts = [frame.where(F.col("partition") == id) for id in sorted(counts)]
        assert parts[0].union(parts[1]).count() == counts[0] + counts[1]
        assert parts[1].join(frame, "key").count() == counts[1]
        one = frame.where(F.col("key") == F.lit(b"00007"))
        assert (one.count(), frame.where("seq > 1000000").count(), one.count(), frame.count()) == (1, 0, 1, ROWS)
    finally:
        spark.conf.unset(setting)


def test_a_stream_that_was_filtered_can_be_used_again(spark, options, write, tmp_path):
    write("compact")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        stream = spark.readStream.format(FORMAT).options(**options).load()
        for name, frame in (("few", stream.where("partition = 0")), ("all", stream)):
            query = (
                frame.writeStream.format("memory")
                .queryName(name)
                .option("checkpointLocation", str(tmp_path / name))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        assert 0 < spark.table("few").count() < spark.table("all").select("key").distinct().count() == ROWS
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"startingOffsets": "newest"}, "'startingOffsets' is 'newest'"),
        ({"value_schema": "a INT"}, "pyspark_tailrace.decode"),
        ({"url": "localhost"}, "option 'url'"),
    ],
)
def test_options_are_checked_before_anything_runs(spark, options, more, text):
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match=text):
            reader.format(FORMAT).options(**options | more).load()


def test_wrong_schema(spark, options, tmp_path):
    with pytest.raises(PySparkException, match=r"asks for city string.*decode"):
        spark.read.format(FORMAT).options(**options).schema("city STRING").load().collect()
    stream = spark.readStream.format(FORMAT).options(**options).schema("city STRING").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException, match=r"asks for city string.*decode"):
        query.awaitTermination()


def test_unknown_feed(spark, options, run):
    with pytest.raises(PySparkException, match="UnknownFeed: there is no feed"):
        spark.read.format(FORMAT).options(**options).load().collect()
    with pytest.raises(StreamingQueryException, match="UnknownFeed: there is no feed"):
        run()
