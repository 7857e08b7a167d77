"""Large tasks on executors that share no folder with the driver, while the leader of the set is killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.processes.dying_set import DyingSet

JOB = "tests.pyspark_tailrace.separate_job"
ROOT = Path(__file__).parents[2]
PARTITIONS = 4
TASKS = 3
# So many rows of 80 random bytes that each task has more than ``restage_bytes``.
ROWS = 50_000
BATCHES = 2


def run_job(folder, url, **options):
    """Runs it to its end; which stages of each micro-batch were kept."""
    options = {"url": url, "feed": "orders", "create_feed": "true", "partitions": str(PARTITIONS)} | options
    spec = {"folder": str(folder), "tasks": TASKS, "options": options}
    command = [sys.executable, "-m", JOB, json.dumps(spec)]
    subprocess.run(command, check=True, timeout=420, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)})
    return [json.loads((folder / f"kept-{batch}").read_text()) for batch in range(BATCHES)]


@pytest.fixture
def dying(tmp_path):
    made = DyingSet(tmp_path, failover="auto")
    yield made
    made.end()


@pytest.mark.long
@pytest.mark.parametrize("point", ["before the seal", "before the publish", "one partition"])
def test_a_query_does_not_end_of_the_loss_of_a_leader_with_large_tasks(dying, contents, tmp_path, point):
    """The next leader gets sealed stages from a member that has them. Spark runs the task of an unsealed one again."""
    rnd = random.Random(1)
    (tmp_path / "in").mkdir()
    for number in range(BATCHES):
        keys = [b"%d-%d" % (number, row) for row in range(ROWS)]
        columns = {"key": keys, "value": [rnd.randbytes(80) for _ in range(ROWS)]}
        pq.write_table(pa.table(columns), tmp_path / "in" / f"{number}.parquet")
    dying.leader()
    dying.order(point)
    kept = run_job(tmp_path, dying.url)
    assert kept == [[False] * TASKS] * BATCHES
    assert not list(tmp_path.glob("**/*.blocks"))
    dying.dead()
    dying.revive()
    dying.become_level()
    wanted = {b"%d-%d" % (number, row): 1 for number in range(BATCHES) for row in range(ROWS)}
    assert Counter(row.key for row in contents(dying.url).rows) == wanted
