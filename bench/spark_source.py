"""Reading with Spark: rows a second of a feed into Spark's ``noop`` sink, against the same rows as Parquet.

    python bench/spark_source.py [--rows 2000000] [--repeats 3] [--partitions 4] [--only batch]

`local[2]`, rows of 16 + 100 bytes that do not compress, a feed that keeps its history, each key twice; the node is a
process of its own beside it. Streams read all there is by `Trigger.AvailableNow`, in micro-batches of a quarter; the
start of a query, 0.8 s, is left out. Batches read a feed with the partitions and one of the same rows with a single
partition, by `catch_up` "stream" and "segments"; all rows are in segments. Interleaved, medians, after one round that
does not count: until Spark has started its Python processes, everything takes seconds more. `--only` reads those whose
names begin so. Each line of a feed is followed by the node's processor time for a million rows.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from _report import Line, show
from _server import Server
from pyspark_tailrace import local_session
from tailrace import blocking

VALUE_BYTES = 100
SCHEMA = "key BINARY, value BINARY"
BATCHES = 4


def write(url: str, folder: Path, rows: int, partitions: int) -> None:
    """The feeds, flushed, and the same rows as Parquet files, as many as the first feed has partitions."""
    keys = [b"key-%012d" % (number % (rows // 2)) for number in range(rows)]
    values = [os.urandom(VALUE_BYTES) for _ in keys]
    with blocking.connect(url) as client:
        for name, count in (("bench", partitions), ("one", 1)):
            feed = client.create_feed(name, partitions=count, retention="history")
            with feed.writer() as writer:
                for key, value in zip(keys, values, strict=True):
                    writer.put(key, value)
            feed.fetch(folder.parent / name)  # flushes
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    size = -(-rows // (partitions * BATCHES))
    for start in range(0, rows, size):
        pq.write_table(table.slice(start, size), folder / f"{start:012d}.parquet", compression="lz4")


def batch(frame: DataFrame) -> float:
    """Reads all of it, and does nothing with it; gives the seconds."""
    begin = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def stream(frame: DataFrame) -> float:
    """Reads all there is, and does nothing with it; gives the seconds of its micro-batches, by Spark's own report."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        query.stop()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
    return sum(progress.durationMs["triggerExecution"] for progress in batches) / 1000


def readings(spark: SparkSession, url: str, folder: Path, rows: int, partitions: int) -> dict[str, Callable[[], float]]:
    """What is measured, by name."""
    parquet = str(folder)

    def feed(schema: str = "", **more: object) -> DataFrame:
        reader = spark.read.format("tailrace").options(**{"url": url, "feed": "bench"} | more)
        return (reader.schema(schema) if schema else reader).load()

    def streamed(schema: str = "") -> DataFrame:
        options = {"url": url, "feed": "bench", "maxRowsPerTrigger": -(-rows // BATCHES)}
        reader = spark.readStream.format("tailrace").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def files() -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", partitions).parquet(parquet)

    return {
        "stream": lambda: stream(streamed()),
        "stream, keys and values only": lambda: stream(streamed(SCHEMA)),
        "stream of Parquet files": lambda: stream(files()),
        "batch of Parquet files": lambda: batch(spark.read.parquet(parquet)),
        **{
            f"batch of {name} by {catch_up}, {what}": partial(_batch_of, feed, schema, name, catch_up, read)
            for name in ("bench", "one")
            for what, schema, read in (
                ("every mutation", "", "mutations"),
                ("keys and values", SCHEMA, "mutations"),
                ("keys only", "key BINARY", "mutations"),
                ("latest state (rows read)", "", "state"),
            )
            for catch_up in ("stream", "segments")
        },
    }


def _batch_of(frame: Callable[..., DataFrame], schema: str, name: str, catch_up: str, read: str) -> float:
    return batch(frame(schema, feed=name, catch_up=catch_up, read=read))


def measure(server: Server, folder: Path, arguments: argparse.Namespace) -> list[Line]:
    """Rows a second of each way of reading, and the node's processor time."""
    spark = local_session(master="local[2]", app_name="bench", config={"spark.driver.memory": "2g"})
    ways = readings(spark, server.address, folder, arguments.rows, arguments.partitions)
    ways = {name: read for name, read in ways.items() if name.startswith(arguments.only)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    used: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(arguments.repeats + 1):
        for name, read in ways.items():
            before, taken = server.cpu_seconds(), read()
            if repeat:
                seconds[name].append(taken)
                used[name].append(server.cpu_seconds() - before)
    spark.stop()
    lines = []
    for name in ways:
        lines.append(Line(name, arguments.rows / median(seconds[name]), "rows/s"))
        if "Parquet" not in name:
            lines.append(Line("  the node's processor", median(used[name]) / arguments.rows * 1e6, "s/M rows"))
    return lines


def main() -> None:
    """Writes, reads, and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "parquet"
        files.mkdir()
        with Server(Path(folder) / "data", Path(folder) / "log") as server:
            write(server.address, files, arguments.rows, arguments.partitions)
            lines = measure(server, files, arguments)
    show(lines, f"{arguments.rows:,} rows of 16 + {VALUE_BYTES} bytes, {arguments.partitions} partitions, local[2]")


if __name__ == "__main__":
    main()
