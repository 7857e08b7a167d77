"""The Spark job: what of it is pure, and what Spark makes of the files' order."""

from __future__ import annotations

import os
import random

import pytest

from pyspark_tailrace.demo.changes import Change
from pyspark_tailrace.demo.job import (
    OBSERVED,
    MicroBatch,
    first_out_of_order,
    parse_progress,
    read_changes,
    reason,
)
from pyspark_tailrace.demo.jsonlines import encode_row, write_json_lines

WORKER_FAILURE = """[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: [PYTHON_EXCEPTION] It was:
Traceback (most recent call last):
  File "sink.py", line 1, in first
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "sink.py", line 55, in write
    return write_batches(self._options, iterator)
           ^^^^^^^^^
tailrace.errors.UnknownFeed: there is no feed 'nope'; create it
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = a]
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (WORKER_FAILURE, "tailrace.errors.UnknownFeed: there is no feed 'nope'; create it"),
        ("[STREAM_FAILED] Query [id = a] terminated with exception: Java heap space\n=== S", "Java heap space"),
        ("An error occurred while calling o1.start.\n: org.apache.E: no path\n\tat org", "org.apache.E: no path"),
        ("An error occurred while calling o1.start.", "An error occurred while calling o1.start."),
        ("", "no reason was given"),
    ],
)
def test_reason_is_what_helps(message, expected):
    assert reason(message) == expected


def make_progress(metrics):
    return {
        "batchId": 7,
        "timestamp": "2026-01-02T03:04:05.500Z",
        "durationMs": {"addBatch": 1_000, "triggerExecution": 1_250},
        "observedMetrics": metrics,
    }


def test_progress_of_a_micro_batch():
    metrics = {OBSERVED: {"changes": 3, "first_order": 4, "last_order": 6}}
    started = 1_767_323_045.5
    assert parse_progress(make_progress(metrics)) == MicroBatch(7, 3, 4, 6, started, started + 1.25)


@pytest.mark.parametrize("metrics", [{}, {OBSERVED: {"changes": 0, "first_order": None, "last_order": None}}])
def test_progress_without_changes_is_none(metrics):
    assert parse_progress(make_progress(metrics)) is None


@pytest.mark.parametrize(
    ("ranges", "wrong"),
    [
        ([], None),
        ([(3, 1, 3), (2, 4, 5)], None),
        ([(2, 2, 3)], 0),  # the first change is missing
        ([(3, 1, 3), (2, 5, 6)], 1),
        ([(3, 1, 3), (3, 3, 5)], 1),  # one came twice
        ([(2, 1, 3), (2, 4, 5)], 0),  # a gap inside
    ],
)
def test_order_of_micro_batches_is_checked(ranges, wrong):
    batches = [MicroBatch(number, *numbers, 0.0, 0.0) for number, numbers in enumerate(ranges)]
    found = first_out_of_order(batches)
    assert (None if found is None else found.id) == wrong


def take_all(spark, folder, files_per_batch):
    """The micro-batches in which Spark takes the files of ``folder``."""
    changes = read_changes(spark, folder, files_per_batch)
    query = changes.writeStream.format("noop").option("checkpointLocation", f"{folder}-checkpoint").start()
    try:
        query.processAllAvailable()
        return [batch for batch in map(parse_progress, query.recentProgress) if batch is not None]
    finally:
        query.stop()


def test_spark_takes_files_oldest_first_whatever_their_names_and_sizes(spark, tmp_path):
    folder = tmp_path / "changes"
    folder.mkdir()
    numbers = list(range(1, 21))
    names = random.Random(5).sample(numbers, len(numbers))
    # The order of the times is neither that of the names nor that in which the files were made.
    for number in random.Random(6).sample(numbers, len(numbers)):
        path = folder / f"part-{names[number - 1]:06}.jsonl"
        path.write_bytes(encode_row(number, Change(b"k", b"x" * (number * 7919 % 5000), number)))
        time_ns = (1_700_000_000_000 + number) * 1_000_000
        os.utime(path, ns=(time_ns, time_ns))
    batches = take_all(spark, folder, 3)
    assert [(batch.first_order, batch.last_order) for batch in batches] == [
        (1, 3), (4, 6), (7, 9), (10, 12), (13, 15), (16, 18), (19, 20),
    ]  # fmt: skip
    assert first_out_of_order(batches) is None


def test_files_of_the_producer_are_taken_in_the_order_of_its_changes(spark, tmp_path):
    folder = tmp_path / "changes"
    changes = [Change(b"k%d" % (n % 5), b"x" * (n * 7919 % 3000), n) for n in range(1, 101)]
    list(write_json_lines(changes, folder, file_rows_max=7))
    batches = take_all(spark, folder, 2)
    assert len(batches) == 8
    assert first_out_of_order(batches) is None


def test_files_out_of_order_are_noticed(spark, tmp_path):
    folder = tmp_path / "changes"
    list(write_json_lines([Change(b"k", b"v", n) for n in range(1, 5)], folder, file_rows_max=1))
    os.utime(folder / "part-000002.jsonl", ns=(0, 0))
    assert first_out_of_order(take_all(spark, folder, 1)).first_order == 2
