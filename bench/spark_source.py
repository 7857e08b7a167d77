"""Reading with Spark: rows a second of a feed into Spark's ``noop`` sink, against the same rows as Parquet.

    python bench/spark_source.py [--rows 2000000] [--repeats 5] [--partitions 4] [--only batch] [--readme]

`local[2]`, rows of 16 + 100 bytes that do not compress, a feed that keeps its history, each key twice; the node is a
process of its own beside it. Streams read all there is by `Trigger.AvailableNow`, in micro-batches of a quarter; the
start of a query, 0.8 s, is left out. The Parquet files have the same rows with all columns of a feed, or with keys and
values only, a file for each partition and micro-batch. A source in Python that only hands out ready Arrow batches,
those of the feed, shows the limit: it costs what Spark's own way from a Python worker into Java costs. All in turns,
medians, after two rounds that do not count: until Spark has started its Python processes and compiled, everything
takes seconds more.

Without `--only` it reads what has a target. `--only` reads those whose names begin so, of all; "" reads all: batches of
a feed with the partitions and of one with a single partition, by `catch_up` "stream" and "segments"; all rows are in
segments. Ratios are medians of those of each round. `--readme` writes the section of bench/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming import DataStreamReader

from _ready_batches import FORMAT, ReadySource
from _report import Line, number, show
from _section import rows_of, setting, targets, write_section
from _server import Processor, Server, Stolen, children_of, cpu_seconds_of
from pyspark_tailrace import local_session
from tailrace import Mutations, blocking

VALUE_BYTES = 100
SCHEMA = "key BINARY, value BINARY"
BATCHES = 4
WARM_UPS = 2
ALL, PAIRS = "all columns", "keys and values"
STREAM, BATCH, SEGMENTS = "stream", "batch of bench by stream", "batch of bench by segments"
FILE_STREAM, FILE_BATCH = "stream of Parquet files", "batch of Parquet files"
READY_STREAM, READY_BATCH = "stream of ready batches", "batch of ready batches"
# What is compared, with the columns of each, and the target.
RATIOS = [
    (STREAM, ALL, FILE_STREAM, ALL, 0.8),
    (STREAM, PAIRS, FILE_STREAM, PAIRS, 0.8),
    (STREAM, ALL, FILE_STREAM, PAIRS, 0.8),
    (BATCH, ALL, FILE_BATCH, ALL, 0.6),
    (BATCH, PAIRS, FILE_BATCH, PAIRS, 0.6),
    (BATCH, ALL, FILE_BATCH, PAIRS, 0.6),
    (SEGMENTS, ALL, FILE_BATCH, ALL, 0.6),
]
# The feed, the source that shows the limit, and the files.
LIMITS = [(BATCH, READY_BATCH, FILE_BATCH), (STREAM, READY_STREAM, FILE_STREAM)]
LIMIT = (
    "The source of ready batches shows the limit. Its Python workers hold the feed's Arrow batches, in the same sizes, "
    "and only hand them out: there is no node, and no socket but Spark's own. So its ratio to Parquet files is about "
    "the most that a source in Python can reach here. Tailrace's ratio to it says how much of that the node and the "
    "client leave."
)


class Reading(NamedTuple):
    """One reading: its seconds, and those of processor time of Java, of Spark's Python processes and of the node."""

    seconds: float
    java: float
    python: float
    node: float


def write(url: str, folder: Path, rows: int, partitions: int) -> None:
    """The feeds, flushed, and the same rows as files of Parquet, and of Arrow as a client gets them."""
    keys = [b"key-%012d" % (number % (rows // 2)) for number in range(rows)]
    values = [os.urandom(VALUE_BYTES) for _ in keys]
    with blocking.connect(url) as client:
        for name, count in (("bench", partitions), ("one", 1)):
            feed = client.create_feed(name, partitions=count, retention="history")
            with feed.writer() as writer:
                for key, value in zip(keys, values, strict=True):
                    writer.put(key, value)
            feed.fetch(folder.parent / name)  # flushes
        with client.feed("bench").consume(until="now") as stream:
            events = [(event.partition, event.to_arrow()) for event in stream if isinstance(event, Mutations)]
    batches = [batch for _, batch in events]
    (folder / FORMAT).mkdir()
    for id in range(partitions):
        with pa.ipc.new_file(folder / FORMAT / f"{id:04d}.arrow", batches[0].schema) as file:
            for batch in (batch for partition, batch in events if partition == id):
                file.write_batch(batch)
    table = pa.Table.from_batches(batches).drop_columns(["expired"]).combine_chunks()
    size = -(-rows // (partitions * BATCHES))
    for name, columns in ((ALL, table), (PAIRS, table.select(["key", "value"]))):
        (folder / name).mkdir()
        for start in range(0, rows, size):
            pq.write_table(columns.slice(start, size), folder / name / f"{start:012d}.parquet", compression="lz4")


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

    def feed(schema: str = "", **more: object) -> DataFrame:
        reader = spark.read.format("tailrace").options(**{"url": url, "feed": "bench"} | more)
        return (reader.schema(schema) if schema else reader).load()

    def streamed(schema: str) -> DataFrame:
        options = {"url": url, "feed": "bench", "maxRowsPerTrigger": -(-rows // BATCHES)}
        reader = spark.readStream.format("tailrace").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def files(columns: str) -> DataFrame:
        path = str(folder / columns)
        reader = spark.readStream.schema(spark.read.parquet(path).schema)
        return reader.option("maxFilesPerTrigger", partitions).parquet(path)

    def ready(reader: DataFrameReader | DataStreamReader, schema: str = "") -> DataFrame:
        reader = reader.format(FORMAT).options(folder=str(folder / FORMAT), batches=BATCHES)
        return (reader.schema(schema) if schema else reader).load()

    return {
        f"{READY_STREAM}, {ALL}": lambda: stream(ready(spark.readStream)),
        f"{READY_STREAM}, {PAIRS}": lambda: stream(ready(spark.readStream, SCHEMA)),
        f"{READY_BATCH}, {ALL}": lambda: batch(ready(spark.read)),
        f"{READY_BATCH}, {PAIRS}": lambda: batch(ready(spark.read, SCHEMA)),
        f"{STREAM}, {ALL}": lambda: stream(streamed("")),
        f"{FILE_STREAM}, {ALL}": lambda: stream(files(ALL)),
        f"{STREAM}, {PAIRS}": lambda: stream(streamed(SCHEMA)),
        f"{FILE_STREAM}, {PAIRS}": lambda: stream(files(PAIRS)),
        f"{FILE_BATCH}, {ALL}": lambda: batch(spark.read.parquet(str(folder / ALL))),
        f"{FILE_BATCH}, {PAIRS}": lambda: batch(spark.read.parquet(str(folder / PAIRS))),
        **{
            f"batch of {name} by {catch_up}, {what}": partial(_batch_of, feed, schema, name, catch_up, read)
            for name in ("bench", "one")
            for what, schema, read in (
                (ALL, "", "mutations"),
                (PAIRS, SCHEMA, "mutations"),
                ("keys only", "key BINARY", "mutations"),
                ("latest state (rows read)", "", "state"),
            )
            for catch_up in ("stream", "segments")
        },
    }


def _batch_of(frame: Callable[..., DataFrame], schema: str, name: str, catch_up: str, read: str) -> float:
    return batch(frame(schema, feed=name, catch_up=catch_up, read=read))


def wanted(names: Iterable[str], only: str | None) -> list[str]:
    """The names that begin with ``only``; if it is None, those of the ratios."""
    compared = {f"{way}, {columns}" for a, b, c, d, _ in RATIOS for way, columns in ((a, b), (c, d))}
    compared |= {f"{way}, {columns}" for ways in LIMITS for way in ways for columns in (ALL, PAIRS)}
    return [name for name in names if (name in compared if only is None else name.startswith(only))]


def measure(server: Server, folder: Path, arguments: argparse.Namespace, load: list[float]) -> dict[str, list[Reading]]:
    """The readings of each round, by name."""
    # Workers import the source of ready batches, so that one keeps its batches for its next task.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.getenv("PYTHONPATH")]))
    spark = local_session(master="local[2]", app_name="bench", config={"spark.driver.memory": "2g"})
    spark.dataSource.register(ReadySource)
    ways = readings(spark, server.address, folder, arguments.rows, arguments.partitions)
    found: dict[str, list[Reading]] = {name: [] for name in wanted(ways, arguments.only)}
    for repeat in range(arguments.repeats + WARM_UPS):
        for name, taken in found.items():
            before = _processor(server)
            seconds = ways[name]()
            after = _processor(server)
            if repeat >= WARM_UPS:
                taken.append(Reading(seconds, *(end - start for start, end in zip(before, after, strict=True))))
        load.append(os.getloadavg()[0])
    spark.stop()
    return found


def _processor(server: Server) -> tuple[float, float, float]:
    """The processor time so far of Java, of Spark's Python processes and of the node; theirs with ended children."""
    java = python = 0.0
    waiting = [pid for pid in children_of(os.getpid()) if pid != server.process.pid]
    while waiting:
        pid = waiting.pop()
        waiting += children_of(pid)
        with contextlib.suppress(OSError, IndexError):  # it may end meanwhile
            if Path(f"/proc/{pid}/exe").readlink().name == "java":
                java += cpu_seconds_of(pid)
            else:
                python += cpu_seconds_of(pid)
            python += sum(Processor.ended(pid))
    return java, python, server.cpu_seconds()


def compared(found: dict[str, list[Reading]]) -> list[Line]:
    """The ratios to Parquet files of what was read."""
    lines = []
    for way, columns, files, their_columns, least in RATIOS:
        ours, theirs = found.get(f"{way}, {columns}"), found.get(f"{files}, {their_columns}")
        if ours and theirs:
            lines.append(Line(f"{way}, {columns}, to {files}, {their_columns}", _ratio(ours, theirs), least=least))
    return lines


def limits(found: dict[str, list[Reading]]) -> list[str]:
    """The lines of a table: the ratios of the source that shows the limit to Parquet files, and of Tailrace to it."""
    lines = []
    for ways in LIMITS:
        for columns in (ALL, PAIRS):
            ours, ready, theirs = (found.get(f"{way}, {columns}") for way in ways)
            if ours and ready and theirs:
                ratios = _ratio(ready, theirs), _ratio(ours, ready)
                lines.append([f"{ways[0].split()[0]}, {columns}", *map(number, ratios)])
    head = ["", "a source that hands out ready batches / Parquet files"]
    return rows_of([*head, "Tailrace / a source that hands out ready batches"], lines) if lines else []


def _ratio(ours: list[Reading], theirs: list[Reading]) -> float:
    """The median of the ratios of rows a second, of each round."""
    return median(b.seconds / a.seconds for a, b in zip(ours, theirs, strict=True))


def table(found: dict[str, list[Reading]], rows: int) -> list[str]:
    """The lines of a table of rates and processor times."""
    lines = []
    for name, taken in found.items():
        seconds, *used = (median(column) for column in zip(*taken, strict=True))
        lines.append([name, number(rows / seconds), *(number(one / rows * 1e6) for one in used)])
    return rows_of(["", "rows/s", "Java, µs a row", "Spark's Python, µs a row", "the node, µs a row"], lines)


def main() -> None:
    """Writes, reads, and shows the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--only", help="the beginning of the names to read")
    parser.add_argument("--readme", action="store_true", help="write the section of bench/README.md")
    arguments = parser.parse_args()
    stolen, begin, load = Stolen(), time.perf_counter(), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "parquet"
        files.mkdir()
        with Server(Path(folder) / "data", Path(folder) / "log") as server:
            write(server.address, files, arguments.rows, arguments.partitions)
            found = measure(server, files, arguments, load)
    ratios, text, limit = compared(found), table(found, arguments.rows), limits(found)
    taken_on = (
        f"{arguments.rows:,} rows of 16 + {VALUE_BYTES} bytes, {arguments.partitions} partitions, local[2], Spark "
        f"{pyspark.__version__}"
    )
    print("\n".join([*text, "", *limit]))
    show(ratios, taken_on)
    if arguments.readme:
        said = f"{taken_on}; medians of {arguments.repeats} rounds in turns, after {WARM_UPS} that do not count. "
        said += setting(load, stolen.share, time.perf_counter() - begin)
        write_section("spark_source.py", [said, "", *text, "", *targets(ratios), "", LIMIT, "", *limit])


if __name__ == "__main__":
    main()
