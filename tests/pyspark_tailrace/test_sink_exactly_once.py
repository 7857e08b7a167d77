"""Exactly once within one session of Spark: commits that fail, queries that are stopped, jobs, and update mode."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from tests.pyspark_tailrace.jobs import Job

from pyspark_tailrace import upsert_batch
from pyspark_tailrace.sink import StreamSink
from pyspark_tailrace.source import TailraceSource
from tailrace import blocking

PARTITIONS = 3


@pytest.fixture
def job(spark, tmp_path, node_process):
    return Job(spark, tmp_path, node_process.url, PARTITIONS)


@pytest.fixture
def times(node_process, contents):
    """How often each key was written."""
    return lambda: Counter(row.key for row in contents(node_process.url).rows)


def once(files, rows=60):
    return {b"%d-%d" % (number, row): 1 for number in range(files) for row in range(rows)}


def failing_source(folder, where):
    """A source whose sink fails at batch 1, at its first try there: its commit before or after the publish, a task."""

    class FailingSink(StreamSink):
        def _fails_first(self, batch):
            try:
                os.close(os.open(folder / f"failed-{batch}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            return batch == 1

        def write(self, iterator):
            from pyspark import TaskContext

            message = super().write(iterator)
            batch = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
            if where == "task" and batch == 1 and self._fails_first(batch):
                raise RuntimeError("the task fails when all is staged")
            return message

        def commit(self, messages, batchId):
            if where == "before" and self._fails_first(batchId):
                raise RuntimeError("the commit fails")
            super().commit(messages, batchId)
            if where == "after" and self._fails_first(batchId):
                raise RuntimeError("the commit fails")

        def abort(self, messages, batchId):
            super().abort(messages, batchId)
            (folder / "aborted").touch()

    class FailingSource(TailraceSource):
        @classmethod
        def name(cls):
            return f"failing-{where}"

        def streamWriter(self, schema, overwrite):
            return FailingSink(super().streamWriter(schema, overwrite)._options)

    return FailingSource


@pytest.mark.parametrize("where", ["before", "after", "task"])
def test_what_fails_is_published_once_by_the_next_start(job, times, where):
    source = failing_source(job.folder, where)
    job.spark.dataSource.register(source)
    for _ in range(3):
        job.add_rows()
    with pytest.raises(StreamingQueryException, match="fails"):
        job.run(job.frame().repartition(2), source=source.name())
    assert (job.folder / "aborted").exists()
    assert times() == once(2 if where == "after" else 1)
    job.run(job.frame().repartition(3), source=source.name())
    assert times() == once(3)


def test_a_query_that_is_stopped_within_a_write(job, times):
    folder = job.folder

    class SlowSink(StreamSink):
        def write(self, iterator):
            import time

            message = super().write(iterator)
            if not (folder / "go on").exists():
                (folder / "waits").touch()
                time.sleep(60)
            return message

    class SlowSource(TailraceSource):
        @classmethod
        def name(cls):
            return "slow"

        def streamWriter(self, schema, overwrite):
            return SlowSink(super().streamWriter(schema, overwrite)._options)

    job.spark.dataSource.register(SlowSource)
    job.add_rows()
    query = job.start(source="slow")
    while not (folder / "waits").exists():
        assert query.exception() is None
        query.awaitTermination(0.05)
    query.stop()
    (folder / "go on").touch()
    job.run(source="slow")
    assert times() == once(1)


def test_wrong_columns_end_the_query_before_anything_is_staged(job, node_process):
    job.add_rows()
    with pytest.raises(StreamingQueryException, match=r"does not use the columns extra: put them into 'value'"):
        job.run(job.frame().withColumn("extra", F.lit(1)))
    with pytest.raises(StreamingQueryException, match="there is no column 'gone'"):
        job.run(deleted="gone")
    with blocking.connect(node_process.url) as client:
        assert client.feeds() == []
    assert not os.path.exists(os.path.join(node_process.data, "staging"))


@pytest.mark.long
def test_another_checkpoint_may_not_use_the_numbers_of_a_sink_again(job, times):
    job.add_rows()
    job.add_rows()
    job.run(sink_id="orders-job")
    with pytest.raises(StreamingQueryException, match=r"(?s)BatchBehind.*option\('first_batch', 2\)"):
        job.run(checkpoint="another", sink_id="orders-job")
    assert times() == once(2)
    job.run(checkpoint="another", sink_id="orders-job", first_batch="2")
    assert set(times().values()) == {2}


@pytest.mark.long
def test_numbers_that_fall_are_refused_and_not_passed_over(job, times):
    """A checkpoint whose query has published one batch only, and one whose query is started without its first_batch."""
    job.add_rows()
    job.run(sink_id="orders-job")
    with pytest.raises(StreamingQueryException, match=r"(?s)BatchBehind.*option\('first_batch', 1\)"):
        job.run(checkpoint="another", sink_id="orders-job")
    job.run(checkpoint="another", sink_id="orders-job", first_batch="7")
    assert times() == dict.fromkeys(once(1), 2)
    job.add_rows()
    with pytest.raises(StreamingQueryException, match=r"(?s)BatchBehind.*.* or another 'first_batch'"):
        job.run(checkpoint="another", sink_id="orders-job")
    job.run(checkpoint="another", sink_id="orders-job", first_batch="7")
    assert times() == dict.fromkeys(once(1), 2) | {b"1-%d" % row: 1 for row in range(60)}


@pytest.mark.long
def test_a_checkpoint_that_is_put_back_to_an_older_copy_loses_no_rows(job, times):
    """Its next batches have numbers that were published, and other rows."""
    folder = job.folder
    job.add_rows()
    job.run()
    shutil.copytree(folder / "checkpoint", folder / "copy")
    for _ in range(2):
        job.add_rows()
    job.run()
    assert times() == once(3)
    shutil.rmtree(folder / "checkpoint")
    (folder / "copy").rename(folder / "checkpoint")
    job.add_file(key=[b"other-%d" % row for row in range(60)], value=[b"v"] * 60)
    job.files = 3  # the next batch, of number 1, has the files of two batches and a new one
    with pytest.raises(StreamingQueryException, match=r"(?s)BatchBehind.*option\('first_batch', 3\)"):
        job.run()
    assert times() == once(3)
    job.run(first_batch="3")
    assert {key for key in times() if key.startswith(b"other")} == {b"other-%d" % row for row in range(60)}


@pytest.mark.long
@pytest.mark.parametrize("way", ["query", "sink_id", "upsert_batch"])
def test_a_checkpoint_that_is_put_back_by_one_batch_loses_no_rows(job, times, way):
    """Its next batch has the number of the last one that was published, and other rows."""
    folder = job.folder

    def run(**more):
        if way == "upsert_batch":
            return run_upserts(job, job.frame(), **more)
        return job.run(**more, **({"sink_id": "orders-job"} if way == "sink_id" else {}))

    job.add_rows()
    run()
    shutil.copytree(folder / "checkpoint", folder / "copy")
    job.add_rows()
    run()
    shutil.rmtree(folder / "checkpoint")
    (folder / "copy").rename(folder / "checkpoint")
    job.add_file(key=[b"other-%d" % row for row in range(60)], value=[b"v"] * 60)
    job.files = 2  # batch 1 has a second file now
    with pytest.raises(StreamingQueryException, match=r"(?s)BatchChanged.*option\('first_batch', 2\)"):
        run()
    assert times() == once(2)
    run(first_batch="2")
    assert {key for key in times() if key.startswith(b"other")} == {b"other-%d" % row for row in range(60)}


def test_rows_that_are_others_each_time_need_the_jobs_word(job, times):
    """The batch was published, and Spark has not noted that: it computes it again."""
    job.add_rows()
    frame = job.frame().withColumn("value", F.expr("cast(uuid() as binary)"))
    job.run(frame)
    for path in (job.folder / "checkpoint" / "commits").iterdir():
        path.unlink()
    again = job.frame().withColumn("value", F.expr("cast(uuid() as binary)"))
    with pytest.raises(StreamingQueryException, match=r"(?s)BatchChanged.*'on_changed_batch', 'skip'"):
        job.run(again)
    job.run(again, on_changed_batch="skip")
    assert times() == once(1)
    job.add_rows()
    job.run(again)
    assert times() == once(2)


def run_upserts(job, rows, **more):
    query = (
        rows.writeStream.outputMode("update")
        .foreachBatch(upsert_batch(**job.options, **more))
        .option("checkpointLocation", str(job.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.mark.long
@pytest.mark.parametrize("kept", [0, 1_000_000])
def test_a_stage_that_is_gone_ends_the_query_and_its_next_start_stages_anew(job, times, kept):
    """It does not end if the tasks keep their blocks."""
    job.add_rows()
    job.options["restage_bytes"] = str(kept)
    folder = job.folder

    class LosingSink(StreamSink):
        def commit(self, messages, batchId):
            if not (folder / "lost").exists():
                (folder / "lost").touch()
                for message in messages:
                    lost = [share.stage._replace(stage_id=bytes(16)) for share in message.stages]
                    message.stages = tuple(s._replace(stage=o) for s, o in zip(message.stages, lost, strict=True))
            super().commit(messages, batchId)

    class LosingSource(TailraceSource):
        @classmethod
        def name(cls):
            return "losing"

        def streamWriter(self, schema, overwrite):
            return LosingSink(super().streamWriter(schema, overwrite)._options)

    job.spark.dataSource.register(LosingSource)
    if kept:
        job.run(source="losing")
    else:
        with pytest.raises(StreamingQueryException, match=r"(?s)UnknownStage.*Start the query again"):
            job.run(source="losing")
        job.run(source="losing")
    assert times() == once(1)


def test_at_least_once_writes_without_stages(job, times, node_process):
    job.add_rows()
    job.run(delivery="at_least_once")
    assert times() == once(1)
    assert not os.path.exists(os.path.join(node_process.data, "staging"))


def test_a_job_is_published_once(job, times):
    rows = [(b"%d" % number, b"v" * 100) for number in range(2_000)]
    frame = job.spark.createDataFrame(rows, "key BINARY, value BINARY").repartition(4)
    frame.write.format("tailrace").options(**job.options).mode("append").save()
    assert times() == {key: 1 for key, _ in rows}


def test_a_job_that_is_numbered_is_written_once_however_often_it_runs(job, times):
    frame = job.spark.createDataFrame([(b"%d" % number, b"v") for number in range(50)], "key BINARY, value BINARY")
    for _ in range(2):
        options = job.options | {"sink_id": "nightly", "batch_id": "20260101"}
        frame.write.format("tailrace").options(**options).mode("append").save()
    assert set(times().values()) == {1}


def test_update_mode_by_way_of_foreach_batch(job, node_process):
    for number in range(3):
        job.add_file(key=[b"%d" % (row % 5) for row in range(20 + number)], value=[b"v"] * (20 + number))
    counts = job.frame().groupBy("key").count()
    run_upserts(job, counts.select("key", F.col("count").cast("string").alias("value")))
    wanted = Counter(b"%d" % (row % 5) for number in range(3) for row in range(20 + number))
    with blocking.connect(node_process.url) as client:
        feed = client.feed("orders")
        assert {key: int(feed.get(key).value) for key in wanted} == wanted


def test_values_as_json_of_the_other_columns(job, contents, node_process):
    rows = [("a", 1, None, True), ("b", 2, "ü", False)]
    frame = job.spark.createDataFrame(rows, "key STRING, count INT, city STRING, open BOOLEAN")
    frame.write.format("tailrace").options(**job.options, value_format="json").mode("append").save()
    found = {key: json.loads(value) for key, value in contents(node_process.url).state().items()}
    assert found == {b"a": {"count": 1, "open": True}, b"b": {"count": 2, "city": "ü", "open": False}}
