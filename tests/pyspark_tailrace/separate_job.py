"""A streaming job on a cluster whose executors do not see the driver's folder of copies, as on several machines.

Run as a program: its argument is JSON (``run_job`` of test_sink_separate.py). ``restage_dir`` is a relative name. Each
executor has a working directory of its own, so it finds nothing there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.pyspark_tailrace.cluster_job import JAVA, start_cluster

SETTINGS = {
    "spark.cores.max": 2,
    "spark.executor.cores": 1,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA,
    "spark.sql.shuffle.partitions": 2,
}


def main(spec):
    folder = Path(spec["folder"])
    master = start_cluster(folder)
    from pyspark_tailrace import local_session
    from pyspark_tailrace.sink import StreamSink
    from pyspark_tailrace.source import TailraceSource

    class NotingSink(StreamSink):
        """Notes for each stage of a micro-batch whether the task has kept its blocks."""

        def commit(self, messages, batchId):
            kept = [share.kept is not None for message in messages for share in message.stages]
            (folder / f"kept-{batchId}").write_text(json.dumps(kept))
            super().commit(messages, batchId)

    class Noting(TailraceSource):
        def streamWriter(self, schema, overwrite):
            return NotingSink(super().streamWriter(schema, overwrite)._options)

    spark = local_session(master=master, config=SETTINGS)
    spark.dataSource.register(Noting)
    stream = spark.readStream.schema("key BINARY, value BINARY").option("maxFilesPerTrigger", 1)
    rows = stream.parquet(str(folder / "in")).repartition(spec["tasks"])
    writer = rows.writeStream.format("tailrace").options(restage_dir=".", **spec["options"])
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
