"""Batches by segments on a cluster of Spark: tasks and executors that die, and tasks that run twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace import blocking

ROOT = Path(__file__).parents[3]
ROWS = 30_000


@pytest.mark.long
def test_tasks_that_are_run_again_and_tasks_that_run_twice(node_process, tmp_path):
    with blocking.connect(node_process.url) as client:
        feed = client.create_feed("orders", partitions=1, retention="history")
        with feed.writer(batch_rows=500) as writer:
            for number in range(ROWS):
                writer.put(b"%06d" % number, os.urandom(100))
        feed.fetch(tmp_path / "copy")  # flushes
    options = {
        "url": node_process.url,
        "feed": "orders",
        "read": "mutations",
        "catch_up": "segments",
        "minPartitions": "6",
    }
    job = [sys.executable, "-m", "tests.pyspark_tailrace.reading.cluster_reading_job"]
    spec = json.dumps({"folder": str(tmp_path), "options": options})
    subprocess.run([*job, spec], check=True, timeout=420, cwd=ROOT)
    began = {path.name for path in tmp_path.glob("began-*")}
    assert {f"began-{number}-{attempt}" for number in (1, 2, 4) for attempt in (0, 1)} <= began
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows == [[0, number + 1, f"{number:06d}"] for number in range(ROWS)]
