"""What the second copy of a Spark task's blocks costs, by its place: none, files, the task's message, or a majority.

    python bench/stage_copies.py [--rows 200000] [--repeats 6] [--folder DIR]

The body of one task, without Spark, stages rows of 16 + 100 bytes that do not compress. The three nodes of the set are
on this machine. The places have their turns, so a busy machine disturbs all alike. Rows a second, and the processor
time of a row: of the task's process, and of the three nodes together.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa
import trio

from _replicas.nodes import Nodes, a_set
from _report import Line, show
from pyspark_tailrace.kept_files import KeptFolder
from pyspark_tailrace.options import SinkOptions, sink_options
from pyspark_tailrace.publishing import publish_batch
from pyspark_tailrace.sink import stage_batches

PARTITIONS = 16
ARROW_ROWS = 10_000
_ALL = str(1 << 30)


class _Place(NamedTuple):
    """Where the second copy is: by ``restage_bytes``, and if there is a folder."""

    name: str
    restage_bytes: str
    has_folder: bool


PLACES = (
    _Place("no copy", "0", False),
    _Place("a file", "1", True),
    _Place("the task's message", _ALL, False),
    _Place("a majority of the nodes", "1", False),
)


class _Found(NamedTuple):
    rows_per_s: float
    task_ns: float
    nodes_ns: float


def _batches(rows: int) -> list[pa.RecordBatch]:
    return [
        pa.record_batch(
            {
                "key": [b"key-%012d" % row for row in range(first, first + ARROW_ROWS)],
                "value": [os.urandom(100) for _ in range(ARROW_ROWS)],
            }
        )
        for first in range(0, rows, ARROW_ROWS)
    ]


def _options(nodes: Nodes, place: _Place) -> SinkOptions:
    given = {"url": nodes.url, "feed": "bench", "create_feed": "true", "partitions": str(PARTITIONS)}
    return sink_options(given | {"restage_bytes": place.restage_bytes})


def _once(nodes: Nodes, place: _Place, batches: list[pa.RecordBatch], folder: str, number: int) -> _Found:
    options = _options(nodes, place)
    kept = KeptFolder.find(folder) if place.has_folder else KeptFolder()
    stage_batches(options, iter(batches[:1]), kept, "warm-0")  # connects
    rows = sum(batch.num_rows for batch in batches)
    nodes_s, task_s, begin = _cpu(nodes), time.process_time(), time.perf_counter()
    stages = stage_batches(options, iter(batches), kept, f"bench-{number}")
    took_s, task_s, nodes_s = time.perf_counter() - begin, time.process_time() - task_s, _cpu(nodes) - nodes_s
    publish_batch(options, f"bench-{PLACES.index(place)}", number, "bench", [stages])  # the copies go
    kept.remove_up_to("bench", number)
    return _Found(rows / took_s, task_s / rows * 1e9, nodes_s / rows * 1e9)


def _cpu(nodes: Nodes) -> float:
    return sum(server.cpu_seconds() for server in nodes.servers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    args = parser.parse_args()
    batches = _batches(args.rows)
    found: dict[_Place, list[_Found]] = {place: [] for place in PLACES}
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as name,
        a_set(Path(name), Path(name) / "log") as nodes,
    ):
        trio.run(nodes.leader)
        for number in range(args.repeats):
            for place in PLACES:
                found[place].append(_once(nodes, place, batches, name, number))
    lines = []
    for place, several in found.items():
        lines.append(Line(f"{place.name}: rows staged", median(each.rows_per_s for each in several), "rows/s"))
        lines.append(Line(f"{place.name}: the task's processor", median(each.task_ns for each in several), "ns/row"))
        lines.append(Line(f"{place.name}: the nodes' processor", median(each.nodes_ns for each in several), "ns/row"))
    show(lines, "the second copy of a task's blocks")


if __name__ == "__main__":
    main()
