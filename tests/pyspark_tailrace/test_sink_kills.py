"""A query of a real Spark into a set whose leader is killed at random moments, and which fails over by itself."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from tests.processes.dying_set import DyingSet
from tests.processes.run import seed_of
from tests.pyspark_tailrace.jobs import Job

pytestmark = pytest.mark.slow

# Far more seconds than a query takes on a busy machine.
SECONDS_MAX = 500.0
PARTITIONS = 4
TASKS = 3
# Between two kills all nodes come back. These many seconds, by chance, pass before the next one.
PAUSE_S = (0.0, 5.0)
KILLS_MIN = 2


class Killer(threading.Thread):
    """Kills the leader again and again, and starts it again, until ``stop``."""

    def __init__(self, nodes, rnd):
        super().__init__(daemon=True)
        self.kills = 0
        self.error = None
        self._nodes = nodes
        self._random = rnd
        self._is_over = threading.Event()

    def run(self):
        try:
            while not self._is_over.wait(self._random.uniform(*PAUSE_S)):
                self._nodes.kill_leader()
                self.kills += 1
                if self._random.random() < 0.7:
                    self._nodes.leader()  # another one, or the dead one may lead again
                self._nodes.revive()
        except BaseException as error:
            self.error = error

    def stop(self):
        """Returns when all nodes are back."""
        self._is_over.set()
        self.join()
        if self.error is not None:
            raise self.error


@pytest.fixture
def nodes(tmp_path):
    made = DyingSet(tmp_path, failover="auto")
    yield made
    made.end()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("files", "rows", "is_large"),
    [(30, 300, False), (5, 40_000, True)],
    ids=["copies in messages", "copies in files"],
)
def test_a_query_does_not_end_of_kills_at_random_moments(spark, tmp_path, nodes, contents, files, rows, is_large):
    """Each row is there once. A task of the large micro-batches has more than ``restage_bytes``."""
    seed = seed_of(1)
    rnd = random.Random(seed)
    job = Job(spark, tmp_path, nodes.url, PARTITIONS)
    job.options["restage_dir"] = str(tmp_path)
    for number in range(files):
        job.add_file(
            key=[b"%d-%d" % (number, row) for row in range(rows)], value=[rnd.randbytes(80) for _ in range(rows)]
        )
    killer = Killer(nodes, rnd)
    query = job.start(job.frame().repartition(TASKS))
    killer.start()
    try:
        assert query.awaitTermination(SECONDS_MAX), "it does not go on"
    finally:
        query.stop()
        killer.stop()
    print(f"seed {seed}: {killer.kills} kills in {files} micro-batches of {rows} rows")
    assert killer.kills >= KILLS_MIN
    assert list(tmp_path.glob("tailrace-restage-*/*/")) == [], "no copy stays"
    nodes.become_level()
    found = Counter(row.key for row in contents(nodes.url).rows)
    assert found == {b"%d-%d" % (number, row): 1 for number in range(files) for row in range(rows)}
    nbytes = rows * (80 + len(b"10-10000")) / TASKS
    assert is_large == (nbytes > 1024 * 1024)
