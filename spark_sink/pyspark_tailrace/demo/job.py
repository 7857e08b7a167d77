"""The Spark job of the demonstration: reads files of changes as a stream, and writes them to a feed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tailrace.demo.failure import DemoFailed, last_words
from pyspark_tailrace.demo.jsonlines import SPARK_SCHEMA
from pyspark_tailrace.partitioning import partition_of
from pyspark_tailrace.session import local_session, register

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Each core has a Python worker of about 100 MB. More would not be faster, because the index takes longer.
CORES = 2
# More tasks than cores, so that the writes of a micro-batch are spread over some time.
TASKS = 8

CONFIG: Mapping[str, object] = {
    # Spark refuses less than 450 MB. This is enough for micro-batches of 24 MB.
    "spark.driver.memory": "512m",
    # A quarter less memory than by default, and faster for a run of a minute: the simplest collector, a heap that
    # starts small and returns unused memory, and only the quick compiler.
    "spark.driver.extraJavaOptions": (
        "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseSerialGC -Xms64m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20 "
        "-XX:TieredStopAtLevel=1"
    ),
    # The rows that Spark passes to a Python worker at once. The default is 10,000, and a row has up to 64 KiB here.
    "spark.sql.execution.arrow.maxRecordsPerBatch": 1_000,
    "spark.sql.execution.arrow.maxBytesPerBatch": 4 << 20,
    # Spark removes a shuffle's files after Java has collected its objects, which may never happen with a small heap. By
    # default Spark starts a collection twice an hour.
    "spark.cleaner.periodicGC.interval": "15s",
    # The reports of all micro-batches are checked at the end.
    "spark.sql.streaming.numRecentProgressUpdates": 100_000,
}

# Makes Java and the Python workers return freed memory to the system.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}

OBSERVED = "changes"
TRACEBACK = "Traceback (most recent call last):"
STOP_TIMEOUT_S = 15.0  # Java ends within a second of losing its input


class MicroBatch(NamedTuple):
    """Spark's report of a micro-batch: the number of changes, their least and greatest ``order``, and the times.

    ``started`` and ``ended`` are seconds since 1970 UTC.
    """

    id: int
    changes: int
    first_order: int
    last_order: int
    started: float
    ended: float


class Job:
    """A Spark session and its query. Every method blocks: call them in threads."""

    def __init__(self, scratch: Path, log: Path) -> None:
        self._scratch = scratch
        self._log = log
        self._spark: SparkSession | None = None
        self._gateway: Any = None  # PySpark's connection to the Java machine, and that process
        self._query: StreamingQuery | None = None

    def start_session(self) -> None:
        """Starts Spark, which writes to this process's stderr. JavaNotFound and ImportError as of ``local_session``.

        Sets ``ENVIRONMENT``, beyond what ``local_session`` sets.
        """
        settings = {
            "spark.local.dir": self._scratch,
            "spark.sql.warehouse.dir": (self._scratch / "warehouse").as_uri(),
        }
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        with self._reporting():
            try:
                self._spark = local_session(
                    master=f"local[{CORES}]", app_name="tailrace demo", config={**CONFIG, **settings}
                )
            finally:
                # The Java machine may run even if the session could not be started.
                self._gateway = _java_gateway()

    def start_query(
        self, folder: Path, *, url: str, feed: str, level: str, partitions: int, files_per_batch: int, checkpoint: Path
    ) -> None:
        """Starts the query that writes the present and future files of ``folder`` to the feed."""
        assert self._spark is not None
        with self._reporting():
            # Registered again, because another thread may have started the session.
            register(self._spark)
            changes = read_changes(self._spark, folder, files_per_batch)
            self._query = write_changes(
                changes, url=url, feed=feed, level=level, partitions=partitions, checkpoint=checkpoint
            )

    def wait_until_ended(self) -> None:
        """Returns when the query was stopped. Raises DemoFailed, with the reason, if it has failed."""
        assert self._query is not None
        with self._reporting():
            self._query.awaitTermination()

    def finish(self) -> None:
        """Returns when the query has written all files of the folder, and has ended. Raises DemoFailed if it fails."""
        assert self._query is not None
        with self._reporting():
            self._query.processAllAvailable()
            self._query.stop()

    def micro_batches(self) -> list[MicroBatch]:
        """Returns the micro-batches that are done, in order."""
        assert self._query is not None
        with self._reporting():
            progress = self._query.recentProgress
        return [batch for batch in map(parse_progress, progress) if batch is not None]

    def stop(self) -> None:
        """Ends the session and the Java machine, and waits for their end. May be called twice."""
        spark, self._spark = self._spark, None
        gateway, self._gateway = self._gateway, None
        # A connection error if the Java machine has already ended.
        with contextlib.suppress(Exception):
            if spark is not None:
                spark.stop()
        if gateway is not None:
            _end_java(gateway)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turns PySpark's errors into DemoFailed with a readable reason."""
        try:
            yield
        except Exception as error:
            if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
                raise DemoFailed(f"Spark's Java machine has ended{last_words(self._log)}") from error
            # PySpark has no common class for the errors of Spark itself.
            if type(error).__module__.startswith(("pyspark.", "py4j.")):
                raise DemoFailed(f"Spark has failed: {reason(str(error))}") from error
            raise


def _java_gateway() -> Any:
    """Returns PySpark's gateway, or None if PySpark was not imported or has none."""
    pyspark: Any = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._gateway


def _end_java(gateway: Any) -> None:
    """Ends the Java machine, which PySpark would let run until this process ends."""
    # A connection error if it has already ended.
    with contextlib.suppress(Exception):
        gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def read_changes(spark: SparkSession, folder: Path, files_per_batch: int) -> DataFrame:
    """Returns the changes of the files in ``folder``, in micro-batches of ``files_per_batch``, the oldest first.

    Each micro-batch reports its changes, for ``parse_progress``.
    """
    from pyspark.sql import functions as F

    rows = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", files_per_batch).json(str(folder))
    changes = rows.select(
        "order",
        F.unbase64("key").alias("key"),
        F.col("value").cast("binary").alias("value"),
        "deleted",
    )
    return changes.observe(
        OBSERVED,
        F.count("*").alias("changes"),
        F.min("order").alias("first_order"),
        F.max("order").alias("last_order"),
    )


def write_changes(
    changes: DataFrame, *, url: str, feed: str, level: str, partitions: int, checkpoint: Path
) -> StreamingQuery:
    """Writes the changes to the feed.

    All changes of a key must pass through one task in their order. So they are distributed by the partition of the key,
    and each task sorts its rows. Across micro-batches the order is that of the files. Delivery is at least once,
    because stages are lost with their leader, which would end the query. The feed keeps the newest row of each key.
    """
    return (
        changes.repartition(TASKS, partition_of("key", partitions))
        .writeStream.format("tailrace")
        .option("url", url)
        .option("feed", feed)
        .option("delivery", "at_least_once")
        .option("level", level)
        .option("partitions", partitions)
        .option("order_by", "order")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def parse_progress(progress: Any) -> MicroBatch | None:
    """Returns Spark's report of a micro-batch, or None if the micro-batch was empty."""
    metrics = progress["observedMetrics"].get(OBSERVED)
    if metrics is None or not metrics["changes"]:
        return None
    started = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return MicroBatch(
        id=progress["batchId"],
        changes=metrics["changes"],
        first_order=metrics["first_order"],
        last_order=metrics["last_order"],
        started=started,
        ended=started + progress["durationMs"]["triggerExecution"] / 1000,
    )


def first_out_of_order(batches: list[MicroBatch]) -> MicroBatch | None:
    """Returns the first micro-batch that has gaps or does not follow the one before it, or None."""
    expected = 1
    for batch in batches:
        if batch.first_order != expected or batch.last_order - batch.first_order + 1 != batch.changes:
            return batch
        expected = batch.last_order + 1
    return None


def reason(message: str) -> str:
    """Returns the cause of a failed query from Spark's message: the error of a Python worker if there is one.

    >>> reason("[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\\n=== Streaming Query ===")
    'Job aborted'
    """
    _, found, traceback = message.rpartition(TRACEBACK)
    if found:
        # The lines of the stack are indented, and the line of the error is not.
        for line in traceback.splitlines():
            if line and not line.startswith(" "):
                return line
    # The first line is py4j's own, with the failed call; the message of Java follows.
    said = message.removeprefix("An error occurred while calling ").partition("\n: ")[2] or message
    first = said.strip().partition("\n")[0]
    return first.rpartition("terminated with exception: ")[2] or "no reason was given"
