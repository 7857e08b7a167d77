"""A batch by segments on a cluster of two workers, whose tasks and executors die, and whose slow tasks run twice.

Run as a program: its argument is JSON (``test_cluster.py``). It writes the rows that Spark has got.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.pyspark_tailrace.cluster_job import SETTINGS, STALLED_S, start_cluster


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def main(spec):
    folder = Path(spec["folder"])
    master = start_cluster(folder)
    from pyspark_tailrace import local_session
    from pyspark_tailrace.reading.batch_reader import BatchReader
    from pyspark_tailrace.source import TailraceSource

    spark = local_session(master=master, config=SETTINGS)

    def trouble():
        """What becomes of a task that has read its first batch, by its number and attempt."""
        from pyspark import TaskContext

        task = TaskContext.get()
        partition, attempt = task.partitionId(), task.attemptNumber()
        (folder / f"began-{partition}-{attempt}").touch()
        match partition, attempt:
            case 1, 0:
                os._exit(1)
            case 2, 0:
                os.kill(parent_of(os.getppid()), signal.SIGKILL)  # the executor: the parent of the worker's parent
                time.sleep(STALLED_S)
            case 4, 0:
                time.sleep(STALLED_S)

    class Troubled(BatchReader):
        def read(self, partition):
            for number, batch in enumerate(super().read(partition)):
                yield batch
                if number == 0:
                    trouble()

    class TroubledSource(TailraceSource):
        def reader(self, schema):
            return Troubled(super().reader(schema)._options, schema)

    spark.dataSource.register(TroubledSource)
    frame = spark.read.format("tailrace").options(**spec["options"]).load()
    rows = sorted([row.partition, row.seq, bytes(row.key).decode()] for row in frame.collect())
    (folder / "rows.json").write_text(json.dumps(rows))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
