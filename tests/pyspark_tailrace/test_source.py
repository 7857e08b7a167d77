"""What Spark itself does with the source: each kind of job, what is refused and how that is told."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from pyspark_tailrace import register
from pyspark_tailrace.source import FORMAT, TailraceSource, source_for
from tailrace import blocking


@pytest.fixture
def options(shared_node, feed_name):
    return {"url": shared_node.url, "feed": feed_name, "create_feed": "true", "partitions": "4", "retry_for": "60"}


@pytest.fixture
def rows(spark):
    return spark.range(1000, numPartitions=3).selectExpr("cast(id as string) AS key", "cast(id as string) AS value")


@pytest.fixture
def stream(spark, tmp_path):
    """A stream of one row, with the columns key and value."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"key": "a", "value": "1"}\n')
    return spark.readStream.schema("key STRING, value STRING").json(str(tmp_path / "in"))


@pytest.fixture
def run(tmp_path, options):
    """Runs a streaming query over all there is."""

    def run(frame, *, mode="append", **more):
        writer = frame.writeStream.format(FORMAT).options(**options | more).outputMode(mode)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return query

    return run


def test_batch_job(rows, options, contents, shared_node):
    rows.write.format(FORMAT).options(**options).mode("append").save()
    assert contents(shared_node.url, options["feed"]).state() == {b"%d" % n: b"%d" % n for n in range(1000)}


@pytest.mark.parametrize(
    ("mode", "text"), [("overwrite", "Use mode 'append'"), ("errorifexists", '"Append" or'), ("ignore", '"Append" or')]
)
def test_other_modes_of_a_batch_job(rows, options, mode, text):
    with pytest.raises(AnalysisException, match=text):
        rows.write.format(FORMAT).options(**options).mode(mode).save()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"url": "localhost"}, "option 'url': 'localhost' is no URL"),
        ({"orderBy": "key"}, "option 'orderby' is not known: 'order_by' is"),
        ({"order_by": "time"}, "there is no column 'time'; the columns are key, value"),
    ],
)
def test_options_are_checked_before_anything_runs(rows, options, more, text):
    with pytest.raises(AnalysisException, match=text):
        rows.write.format(FORMAT).options(**options | more).mode("append").save()


@pytest.mark.parametrize(
    ("kind", "more", "text"),
    [("streamWriter", {"batch_id": "1"}, "'batch_id' is for batch"), ("writer", {"first_batch": "1"}, "for streams")],
)
def test_numbers_are_checked_for_what_asks_for_them(kind, more, text):
    source = TailraceSource({"url": "tailrace://a", "feed": "f", "sink_id": "s"} | more)
    with pytest.raises(ValueError, match=text):
        getattr(source, kind)(StructType([StructField(name, StringType()) for name in ("key", "value")]), False)


def test_columns_are_checked_before_anything_runs(rows, options):
    with pytest.raises(AnalysisException, match=r"does not use the columns extra.*to_json"):
        rows.withColumn("extra", F.lit(1)).write.format(FORMAT).options(**options).mode("append").save()


def test_stream(stream, run, options, contents, shared_node):
    run(stream)
    assert contents(shared_node.url, options["feed"]).history() == {b"a": [b"1"]}


def test_stream_in_mode_complete(stream, run):
    with pytest.raises(StreamingQueryException, match=r"would replace .*Use outputMode 'append'"):
        run(stream.groupBy("key").agg(F.max("value").alias("value")), mode="complete")


def test_stream_in_mode_update(stream, run):
    with pytest.raises(StreamingQueryException, match="tailrace does not support Update mode"):
        run(stream, mode="update")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"feed": "nowhere", "create_feed": "false"}, r"UnknownFeed: there is no feed 'nowhere'.*'create_feed'"),
        ({"url": "tailrace://127.0.0.1:1", "retry_for": "0.5"}, r"Unreachable: no node at 127\.0\.0\.1:1 .*refused"),
    ],
)
def test_error_of_a_task_ends_the_query_and_says_why(stream, run, more, text):
    with pytest.raises(StreamingQueryException, match=f"(?s){text}"):
        run(stream, **more)


def test_a_token_that_the_node_does_not_know_ends_the_query(stream, run, secured_node):
    with pytest.raises(StreamingQueryException, match=r"(?s)Forbidden: .*token") as caught:
        run(stream, url=secured_node.url, token="secret")
    assert "secret" not in str(caught.value)


def test_null_key_ends_the_query(stream, run):
    with pytest.raises(StreamingQueryException, match="1 of 1 rows have a null key: give each a key"):
        run(stream.selectExpr("CAST(NULL AS STRING) AS key", "value"))


def test_wrong_partition_column_ends_the_query(stream, run):
    with pytest.raises(StreamingQueryException, match=r"the partition column says 9 for the key b'a'"):
        run(stream.withColumn("p", F.lit(9)), partition_column="p")


def test_a_view_is_read_and_written_by_sql(spark, options, contents, shared_node):
    given = ", ".join(f"{name} '{options[name]}'" for name in ("url", "feed"))
    with blocking.connect(shared_node.url) as client:
        client.create_feed(options["feed"]).put(b"a", b"1")
    spark.sql(f"CREATE TEMPORARY VIEW everything USING {FORMAT} OPTIONS ({given})")
    assert [(row.key, row.value) for row in spark.sql("SELECT * FROM everything").collect()] == [(b"a", b"1")]
    with pytest.raises(AnalysisException, match=r"the node sets partition, seq and timestamp.*INSERT INTO"):
        spark.sql("INSERT INTO everything VALUES (0, 0, binary('b'), binary('2'), false, now())")
    spark.sql(f"CREATE TEMPORARY VIEW rows (key BINARY, value BINARY) USING {FORMAT} OPTIONS ({given})")
    spark.sql("INSERT INTO rows VALUES (binary('b'), binary('2'))")
    assert contents(shared_node.url, options["feed"]).state() == {b"a": b"1", b"b": b"2"}


def test_a_table_is_refused_and_the_view_is_named(spark, options):
    given = ", ".join(f"{name} '{options[name]}'" for name in ("url", "feed"))
    with pytest.raises(AnalysisException, match=r"CREATE TABLE is not for tailrace: .*CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE t USING {FORMAT} OPTIONS ({given})")
    spark.sql(f"CREATE TABLE u (key BINARY, value BINARY) USING {FORMAT} OPTIONS ({given})")  # it does not ask us
    for use in ("SELECT * FROM u", "INSERT INTO u VALUES (binary('b'), binary('2'))"):
        with pytest.raises(AnalysisException, match=r"If this is a table: .*CREATE TEMPORARY VIEW"):
            spark.sql(use).collect()
    spark.sql("DROP TABLE u")


def test_name():
    assert TailraceSource.name() == "tailrace"


def test_names_of_columns_follow_the_case_setting_of_the_session():
    options = {"url": "tailrace://127.0.0.1:1", "feed": "f"}
    read, written = "KEY binary", "key binary, value binary, Place int"
    any_case, by_case = source_for("false"), source_for("TRUE")
    assert source_for(None) is any_case
    assert any_case(options).reader(_of(read))
    assert by_case(options).reader(_of("key binary"))
    for make in ("reader", "streamReader"):
        given = options if make == "reader" else options | {"startingOffsets": "earliest"}
        with pytest.raises(ValueError, match="the schema asks for KEY binary"):
            getattr(by_case(given), make)(_of(read))
    for name, value in (("order_by", "place desc"), ("partition_column", "place")):
        given = options | {name: value}
        assert any_case(given).writer(_of(written), False)
        with pytest.raises(ValueError, match="there is no column 'place'"):
            by_case(given).writer(_of(written), False)
        assert by_case(options | {name: value.replace("p", "P", 1)}).writer(_of(written), False)


def _of(text):
    names = {"binary": BinaryType(), "int": IntegerType()}
    return StructType([StructField(name, names[kind]) for name, kind in (c.split() for c in text.split(", "))])


def test_the_session_s_own_setting_counts(spark, options):
    def read():
        given = {name: options[name] for name in ("url", "feed")}
        return spark.read.format(FORMAT).options(**given).schema("KEY binary").load().collect()

    spark.createDataFrame([(b"a", b"1")], "key binary, value binary").write.format(FORMAT).options(**options).mode(
        "append"
    ).save()
    assert [row.KEY for row in read()] == [b"a"]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        register(spark)
        with pytest.raises(AnalysisException, match="the schema asks for KEY binary"):
            read()
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")
        register(spark)
    assert [row.KEY for row in read()] == [b"a"]


def test_what_save_as_table_writes_is_in_the_feed_and_the_table_says_how_to_read_it(
    spark, options, contents, shared_node
):
    rows = spark.createDataFrame([(b"a", b"1")], "key binary, value binary")
    for value in (b"1", b"2"):  # a second time it finds the table
        changed = rows.selectExpr("key", f"binary('{value.decode()}') value")
        changed.write.format(FORMAT).options(**options).mode("append").saveAsTable("saved")
        assert contents(shared_node.url, options["feed"]).state() == {b"a": value}
    with pytest.raises(
        AnalysisException, match=r"CREATE TEMPORARY VIEW.*saveAsTable or toTable have written are in the"
    ):
        spark.table("saved").collect()
    spark.sql("DROP TABLE saved")
    assert contents(shared_node.url, options["feed"]).state() == {b"a": b"2"}
