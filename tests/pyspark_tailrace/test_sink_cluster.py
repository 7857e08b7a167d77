"""Exactly once on a cluster of Spark: tasks that are tried again, and tasks that run twice at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.pyspark_tailrace.test_exactly_once import ROWS, add_files

JOB = Path(__file__).with_name("cluster_job.py")
# What happens in each micro-batch, and then in a batch job of as many rows; cluster_job.py says which task it is.
BATCHES = ["retry", "the second wins", "the first wins"]


def run_job(folder, url):
    """Runs it to its end; which attempts have staged all of their rows, by micro-batch and partition."""
    options = {"url": url, "feed": "orders", "create_feed": "true", "partitions": "3"}
    spec = {"folder": str(folder), "batches": BATCHES, "options": options}
    subprocess.run([sys.executable, str(JOB), json.dumps(spec)], check=True, timeout=420)
    marks = [path.name.split("-")[1:] for path in folder.glob("staged-*")]
    return {(batch, partition, attempt) for batch, partition, attempt in marks}


@pytest.mark.long
def test_tasks_that_are_run_again_and_tasks_that_run_twice(node_process, contents, tmp_path):
    add_files(tmp_path, len(BATCHES) + 1)
    (tmp_path / "of-job").mkdir()
    (tmp_path / "in" / f"{len(BATCHES)}.parquet").rename(tmp_path / "of-job" / "rows.parquet")
    staged = run_job(tmp_path, node_process.url)
    for batch, partition, attempts in (
        ("retry", 0, 3),
        ("the second wins", 1, 2),
        ("the first wins", 1, 2),
        ("job", 1, 3),
    ):
        assert {(batch, str(partition), str(attempt)) for attempt in range(attempts)} <= staged
    wanted = {b"%d-%d" % (number, row): 1 for number in range(len(BATCHES) + 1) for row in range(ROWS)}
    assert Counter(row.key for row in contents(node_process.url).rows) == wanted
