"""Exactly once with a real Spark: drivers that are killed, tasks that are run again, commits that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.processes.program import Orders

JOB = Path(__file__).with_name("killed_job.py")
PARTITIONS = 3
ROWS = 400
# Where the job is killed, in which micro-batch, and with how many cores and tasks it had been started. The next start
# has others.
KILLS = [
    ("within write", 1, 2, 3),
    ("before publish", 2, 1, 2),
    ("publish sent", 3, 2, 1),
    ("publish answered", 4, 1, 4),
    ("begin of write", 6, 2, 2),
]
FORGETFUL = """
import tailrace_server.state.last_batches as last_batches
last_batches.LastBatches.find = lambda self, sink: None
"""


def add_files(folder, count):
    """Files in the order in which they are read; every row has a key of its own."""
    (folder / "in").mkdir()
    for number in range(count):
        path = folder / "in" / f"{number}.parquet"
        keys = [b"%d-%d" % (number, row) for row in range(ROWS)]
        pq.write_table(pa.table({"key": keys, "value": [b"v" * (row % 50) for row in range(ROWS)]}), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def run(folder, url, point="", batch=-1, cores=2, tasks=2, **options):
    """Runs the job; its output where it has come to its end, None where it was killed at the point."""
    options = {"url": url, "feed": "orders", "create_feed": "true", "partitions": str(PARTITIONS)} | options
    spec = {"folder": str(folder), "point": point, "batch": batch, "cores": cores, "tasks": tasks, "options": options}
    done = subprocess.run(
        [sys.executable, str(JOB), json.dumps(spec)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        timeout=900,
    )
    assert done.returncode in (0, -signal.SIGKILL), "see its stderr"
    return done.stdout if done.returncode == 0 else None


def times_written(contents, url):
    """How often each key was written, by a reader that knows nothing of batches."""
    return Counter(row.key for row in contents(url).rows)


@pytest.mark.soak
def test_a_driver_that_is_killed_at_every_point(node_process, contents, tmp_path):
    add_files(tmp_path, 8)
    for point, batch, cores, tasks in KILLS:
        assert run(tmp_path, node_process.url, point, batch, cores, tasks) is None, f"not killed {point}"
    assert run(tmp_path, node_process.url, cores=1, tasks=3) is not None
    wanted = {b"%d-%d" % (number, row): 1 for number in range(8) for row in range(ROWS)}
    assert times_written(contents, node_process.url) == wanted


@pytest.mark.planted
@pytest.mark.slow
def test_a_node_that_forgets_batches_is_found(start_node, contents, tmp_path):
    node = start_node(Orders(planted=FORGETFUL))
    add_files(tmp_path, 2)
    assert run(tmp_path, node.url, "publish answered", 1) is None
    assert run(tmp_path, node.url) is not None
    assert max(times_written(contents, node.url).values()) == 2
