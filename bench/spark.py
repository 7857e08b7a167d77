"""What a streaming query of Spark writes into a feed, exactly once and at least once, beside sinks that do less.

    python bench/spark.py [--rows 500000] [--batches 4] [--repeats 2] [--small 20] [--cores 2] [--only SINK ...]
                          [--folder DIR]

Micro-batches of ``--rows`` rows of 16 + 100 bytes from parquet, one file each, ``local[CORES]``, the node beside it
with its default settings; rows a second are those of the median micro-batch, by Spark's own ``addBatch``. Each sink has
its turn ``--repeats`` times, after a query that does not count: until Java has compiled what runs often, everything
takes twice as long. Nor does the first micro-batch of a query.

Then micro-batches of 200 rows and of none: the time of ``addBatch`` and of the whole trigger, and how much more that is
than the counting sink's, which is Spark's own share.

    exactly_once, at_least_once    the sink
    ordered                        the sink, exactly once, with ``partition_of`` and ``order_by``
    arrow, rows                    sinks in Python that count what they get: Arrow batches, rows
    hashed                         as ``arrow``, and gets the hash of each key as a column: what handing it over costs
    partitions                     foreachBatch, foreachPartition, and the SDK's writer
    parquet                        Spark's own sink to files
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from _report import Line, show
from _server import Server
from pyspark_tailrace import local_session, partition_of

SINKS = ("arrow", "hashed", "exactly_once", "at_least_once", "ordered", "rows", "partitions", "parquet")
OURS = ("exactly_once", "at_least_once", "ordered")
COUNTING = "arrow"  # what the others are compared with: it gets the rows in the same way, and does nothing with them
SHARE_MIN = 0.5
SMALL_ROWS = 200
PARTITIONS = 16


class Count(WriterCommitMessage):
    """How many rows a task has seen."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def counting(by_rows: bool) -> type[DataSource]:
    """A source whose sink counts; made here, so that Spark takes it along by its code."""

    class ArrowSink(DataSourceStreamArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return Count(sum(batch.num_rows for batch in iterator))

    class RowSink(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            return Count(sum(1 for _ in iterator))

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting-rows" if by_rows else "counting-arrow"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return RowSink() if by_rows else ArrowSink()

    return Counting


def write_partition(url: str, feed: str) -> Any:
    """The body of foreachPartition: rows one by one through the SDK."""

    def write(rows: Iterator[Any]) -> None:
        from tailrace import blocking

        with blocking.connect(url) as client, client.feed(feed).writer() as writer:
            for row in rows:
                writer.put(bytes(row.key), bytes(row.value))

    return write


class Bench:
    """One session of Spark, one node."""

    def __init__(self, args: argparse.Namespace, folder: Path, server: Server) -> None:
        self.args = args
        self.folder = folder
        self.server = server
        self.url = server.address
        self.spark = local_session(master=f"local[{args.cores}]", app_name="bench")
        for by_rows in (False, True):
            self.spark.dataSource.register(counting(by_rows))

    def files(self, name: str, count: int, rows: int) -> Path:
        """Files of so many rows each, with keys and values that do not compress."""
        folder = self.folder / name
        folder.mkdir()
        rnd = random.Random(4700)
        for number in range(count):
            data = rnd.randbytes(116 * rows)
            keys = pa.array([data[i * 16 : i * 16 + 16] for i in range(rows)], pa.binary())
            values = pa.array([data[16 * rows + i * 100 : 16 * rows + i * 100 + 100] for i in range(rows)], pa.binary())
            path = folder / f"{number}.parquet"
            pq.write_table(pa.table({"key": keys, "value": values}), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        return folder

    def run(self, sink: str, name: str, source: Path) -> list[dict[str, int]]:
        """A query over a folder; what each micro-batch but the first one took, in milliseconds."""
        reader = self.spark.readStream.schema("key BINARY, value BINARY").option("maxFilesPerTrigger", 1)
        frame = reader.parquet(str(source))
        if sink == "hashed":
            frame = frame.withColumn("hash", F.xxhash64("key"))
        by = [partition_of("key", PARTITIONS)] if sink == "ordered" else []
        writer = frame.repartition(self.args.cores, *by).writeStream.option(
            "checkpointLocation", str(self.folder / f"{name}-{sink}")
        )
        feed = f"{name}-{sink}".replace("_", "-")
        match sink:
            case "exactly_once" | "at_least_once" | "ordered":
                said = {"url": self.url, "feed": feed, "create_feed": "true", "partitions": PARTITIONS}
                said |= {"order_by": "key"} if sink == "ordered" else {"delivery": sink}
                writer = writer.format("tailrace").options(**said)
            case "arrow" | "hashed":
                writer = writer.format("counting-arrow")
            case "rows":
                writer = writer.format("counting-rows")
            case "partitions":
                from tailrace import blocking

                with blocking.connect(self.url) as client:
                    client.create_feed(feed, partitions=PARTITIONS)
                write = write_partition(self.url, feed)
                writer = writer.foreachBatch(lambda batch, _: batch.rdd.foreachPartition(write))
            case "parquet":
                writer = writer.format("parquet").option("path", str(self.folder / f"out-{name}"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress.durationMs for progress in query.recentProgress if progress.durationMs.get("addBatch")][1:]

    def answer(self) -> list[Line]:
        """Everything that was asked for."""
        try:
            return [*self.large(), *self.small()]
        finally:
            self.spark.stop()

    def large(self) -> Iterator[Line]:
        """Rows a second, and the node's processor time: on a busy machine that says more."""
        args = self.args
        source = self.files("large", args.batches + 1, args.rows)
        told("to warm up")
        self.run(COUNTING, "warm", source)
        took: dict[str, list[dict[str, int]]] = {sink: [] for sink in args.only}
        node: dict[str, float] = dict.fromkeys(args.only, 0.0)
        for repeat in range(args.repeats):
            for sink in args.only:
                told(sink)
                before = self.server.cpu_seconds()
                took[sink] += self.run(sink, f"large{repeat}", source)
                node[sink] += self.server.cpu_seconds() - before
        rates = {sink: args.rows / median(found, "addBatch") * 1_000 for sink, found in took.items()}
        for sink, rate in rates.items():
            yield Line(f"{sink}: {args.rows:,} rows a micro-batch", rate, "rows/s")
            if sink in OURS:
                rows = args.repeats * (args.batches + 1) * args.rows
                yield Line(f"{sink}: the node's processor", node[sink] / rows * 1e6, "us a row")
                if COUNTING in rates:
                    least = SHARE_MIN if sink == "exactly_once" else None
                    yield Line(f"{sink}: to the counting sink", rate / rates[COUNTING], least=least)

    def small(self) -> Iterator[Line]:
        """The time of small micro-batches."""
        args = self.args
        for name, rows in (("200 rows", SMALL_ROWS), ("no rows", 0)):
            source = self.files(name, args.small + 1, rows)
            whole: dict[str, float] = {}
            for sink in args.only:
                told(f"{sink}, {name}")
                found = self.run(sink, name.replace(" ", "-"), source)
                whole[sink] = median(found, "triggerExecution")
                yield Line(f"{sink}: {name}, addBatch", median(found, "addBatch"), "ms")
                yield Line(f"{sink}: {name}, whole trigger", whole[sink], "ms")
                if sink in OURS and COUNTING in whole:
                    yield Line(f"{sink}: {name}, more than Spark's own", whole[sink] - whole[COUNTING], "ms")


def told(what: str) -> None:
    """Says what is under way."""
    print(f"spark: {what} ...", file=sys.stderr, flush=True)


def median(found: list[dict[str, int]], what: str) -> float:
    """Of all micro-batches."""
    return statistics.median(durations[what] for durations in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--small", type=int, default=20)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=SINKS, default=list(SINKS), metavar="SINK")
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as name:
        folder = Path(name)
        with Server(folder / "data", folder / "log") as server:
            lines = Bench(args, folder, server).answer()
    show(lines, f"Spark, local[{args.cores}]")


if __name__ == "__main__":
    main()
