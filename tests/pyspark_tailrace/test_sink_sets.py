"""Exactly once with a real Spark into a set of three nodes, whose leader dies at each point of a publish."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from pyspark.errors import StreamingQueryException
from tests.processes.dying_set import PATIENCE_S, DyingSet
from tests.pyspark_tailrace.jobs import Job
from tests.pyspark_tailrace.test_sink_exactly_once import PARTITIONS, once

from pyspark_tailrace.sink import StreamSink
from pyspark_tailrace.source import TailraceSource

# Where the leader dies, and whether the query ends of it if its tasks keep nothing: what was staged there is gone.
DEATHS = [
    ("staged", False),  # nothing of it was acknowledged: the task sends it again
    ("before the seal", True),
    ("before the publish", True),
    ("one partition", True),
    ("one partition, at quorum", True),
    ("one partition, frozen", True),  # it goes on when another one leads, and has published
    ("before the answer", False),  # the new leader has all of the batch: it passes over it
    ("after the answer", False),
]


@pytest.fixture
def dying(tmp_path):
    made = DyingSet(tmp_path)
    yield made
    made.end()


def deadly_source(folder):
    """A source whose sink kills the process that the file ``prey`` names, when it has published."""

    class DeadlySink(StreamSink):
        def commit(self, messages, batchId):
            super().commit(messages, batchId)
            if (folder / "prey").exists():
                os.kill(int((folder / "prey").read_text()), signal.SIGKILL)
                (folder / "prey").unlink()

    class DeadlySource(TailraceSource):
        @classmethod
        def name(cls):
            return "deadly"

        def streamWriter(self, schema, overwrite):
            return DeadlySink(super().streamWriter(schema, overwrite)._options)

    return DeadlySource


@pytest.mark.soak
@pytest.mark.parametrize("kept", [0, 1, 1_000_000])
def test_each_row_once_wherever_the_leader_dies(spark, tmp_path, dying, contents, kept):
    """Each death in a micro-batch of its own; another node leads after each of them.

    The query does not end of any death if its tasks keep their blocks, in memory or in files.
    """
    job = Job(spark, tmp_path, dying.url, PARTITIONS)
    job.options["restage_dir"] = str(tmp_path)
    job.options["restage_bytes"] = str(kept)
    spark.dataSource.register(deadly_source(tmp_path))
    for tasks, (point, ends) in enumerate(DEATHS, 1):
        job.add_rows()
        if point == "after the answer":
            (tmp_path / "prey").write_text(str(dying.leader().pid))
        else:
            dying.order(point)
        query = job.start(job.frame().repartition(1 if point == "staged" else 1 + tasks % 3), source="deadly")
        dying.replace_dead()
        if ends and not kept:
            with pytest.raises(StreamingQueryException, match=r"(?s)UnknownStage.*Start the query again"):
                query.awaitTermination(PATIENCE_S)
            job.run(job.frame().repartition(2), source="deadly")
        else:
            assert query.awaitTermination(PATIENCE_S), "it does not go on"
        dying.revive()
    job.add_rows()
    job.run()
    dying.become_level()
    assert Counter(row.key for row in contents(dying.url).rows) == once(len(DEATHS) + 1)
