"""The Spark job of the demonstration: files of changes, read as a stream, into a feed."""

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

# Each of them has a Python worker, of about 100 MB; more would not be faster, since the index takes longer.
CORES = 2
# More than cores, so that the writes of a micro-batch are spread over some time.
TASKS = 8

CONFIG: Mapping[str, object] = {
    # Spark takes no less than 450 MB. It is enough for micro-batches of 24 MB.
    "spark.driver.memory": "512m",
    # A quarter less memory than by default, and a run of a minute is faster: the simplest collector, a heap that begins
    # small and gives back what it does not need, and only the quick compiler.
    "spark.driver.extraJavaOptions": (
        "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseSerialGC -Xms64m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20 "
        "-XX:TieredStopAtLevel=1"
    ),
    # What Spark hands over to a Python worker at once: by default 10,000 rows, here of up to 64 KiB each.
    "spark.sql.execution.arrow.maxRecordsPerBatch": 1_000,
    "spark.sql.execution.arrow.maxBytesPerBatch": 4 << 20,
    # Spark removes a shuffle's files once Java has collected what stood for it, which with little in the heap can be
    # never: by default it asks for that twice an hour.
    "spark.cleaner.periodicGC.interval": "15s",
    # Every micro-batch is looked at when all are done.
    "spark.sql.streaming.numRecentProgressUpdates": 100_000,
}

# Of Java and the Python workers: memory that was given back inside of them goes back to the system as well.
ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"}

OBSERVED = "changes"
TRACEBACK = "Traceback (most recent call last):"
STOP_TIMEOUT_S = 15.0  # Java ends within a second of losing its input


class MicroBatch(NamedTuple):
    """What Spark says of a micro-batch: its changes, the least and the greatest ``order`` of them, and its times.

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
                # It may be there even where the session is not.
                self._gateway = _java_gateway()

    def start_query(
        self, folder: Path, *, url: str, feed: str, level: str, partitions: int, files_per_batch: int, checkpoint: Path
    ) -> None:
        """Begins to write what the files in ``folder`` have, and will have, to the feed."""
        assert self._spark is not None
        with self._reporting():
            # Once more: this is seldom the thread that has started the session.
            register(self._spark)
            changes = read_changes(self._spark, folder, files_per_batch)
            self._query = write_changes(
                changes, url=url, feed=feed, level=level, partitions=partitions, checkpoint=checkpoint
            )

    def wait_until_ended(self) -> None:
        """Returns when the query was stopped. DemoFailed, with the reason, when it has failed."""
        assert self._query is not None
        with self._reporting():
            self._query.awaitTermination()

    def finish(self) -> None:
        """Returns when the query has written all that is in the folder, and has ended. DemoFailed as above."""
        assert self._query is not None
        with self._reporting():
            self._query.processAllAvailable()
            self._query.stop()

    def micro_batches(self) -> list[MicroBatch]:
        """Those that are done, in order."""
        assert self._query is not None
        with self._reporting():
            progress = self._query.recentProgress
        return [batch for batch in map(parse_progress, progress) if batch is not None]

    def stop(self) -> None:
        """Ends everything that was started; nothing of it runs when this returns. May be called twice."""
        spark, self._spark = self._spark, None
        gateway, self._gateway = self._gateway, None
        # An error of the connection, where the Java machine has ended already.
        with contextlib.suppress(Exception):
            if spark is not None:
                spark.stop()
        if gateway is not None:
            _end_java(gateway)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Turns what PySpark raises into DemoFailed with a reason that can be read."""
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
    """PySpark's, where it has been imported and has one."""
    pyspark: Any = sys.modules.get("pyspark")
    return None if pyspark is None else pyspark.SparkContext._gateway


def _end_java(gateway: Any) -> None:
    """Ends the Java machine, which PySpark would let run until this process ends."""
    # An error of its connection, where it has ended already.
    with contextlib.suppress(Exception):
        gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def read_changes(spark: SparkSession, folder: Path, files_per_batch: int) -> DataFrame:
    """The changes of the files in ``folder``, in micro-batches of so many files, the oldest first.

    Each micro-batch says what it has, for ``parse_progress``.
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
    """Writes them to the feed.

    All changes of a key have to go through one task, in their order: so they are distributed by the partition of the
    key, and each task sorts what it gets. Across micro-batches the order is that of the files. At least once: stages
    are lost with their leader and end the query, and this one goes on; the feed keeps the newest row of each key.
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
    """What is needed of Spark's report of a micro-batch; None where there was nothing in it."""
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
    """The first micro-batch that does not begin where the one before it has ended, or has gaps; None where all do."""
    expected = 1
    for batch in batches:
        if batch.first_order != expected or batch.last_order - batch.first_order + 1 != batch.changes:
            return batch
        expected = batch.last_order + 1
    return None


def reason(message: str) -> str:
    """The cause in what Spark says of a failed query: the error of a Python worker, where it was one.

    >>> reason("[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\\n=== Streaming Query ===")
    'Job aborted'
    """
    _, found, traceback = message.rpartition(TRACEBACK)
    if found:
        # The lines of the stack are indented, the error's is not.
        for line in traceback.splitlines():
            if line and not line.startswith(" "):
                return line
    # py4j says in its own first line which call has failed, and then what Java said.
    said = message.removeprefix("An error occurred while calling ").partition("\n: ")[2] or message
    first = said.strip().partition("\n")[0]
    return first.rpartition("terminated with exception: ")[2] or "it does not say why"
