"""Jobs on a cluster of two workers, which tries failed tasks again and runs slow ones twice; `local[N]` does neither.

Run as a program: its argument is JSON (``run_job`` of test_sink_cluster.py). Master and workers are those of Spark's
standalone mode, inside the Java of the driver; each worker has an address of its own, since Spark runs no task twice on
one host.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

HOSTS = ("127.0.0.1", "127.0.0.2")
# Tests run many short-lived ones.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A second attempt begins soon after the others have ended.
SETTINGS = {
    "spark.cores.max": 2,
    "spark.executor.cores": 1,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA,
    "spark.sql.shuffle.partitions": 3,
    "spark.speculation": True,
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
STALLED_S = 240.0
POLL_S = 0.05


def start_cluster(folder):
    """The address of a master with a worker of one core on each host; they end with this process."""
    import pyspark
    from pyspark import SparkContext

    from pyspark_tailrace.session import LOG_SETTINGS, _prepare_environment
    from pyspark_tailrace.versions import java_version_max

    _prepare_environment("local", java_version_max(pyspark.__version__))
    os.environ["SPARK_SUBMIT_OPTS"] = f"{JAVA} -Dlog4j2.configurationFile={LOG_SETTINGS.resolve().as_uri()}"
    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    conf = jvm.org.apache.spark.SparkConf(True)
    master = jvm.org.apache.spark.deploy.master.Master.startRpcEnvAndEndpoint(HOSTS[0], 0, 0, conf)._1()
    urls = SparkContext._gateway.new_array(jvm.java.lang.String, 1)
    urls[0] = url = master.address().toSparkURL()
    for number, host in enumerate(HOSTS):
        jvm.org.apache.spark.deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, 1, 512, urls, str(folder / f"worker-{number}"), jvm.scala.Option.apply(number), conf,
            jvm.scala.Option.empty(),
        )  # fmt: skip
    return url


def main(spec):
    folder = Path(spec["folder"])
    master = start_cluster(folder)
    from pyspark_tailrace import local_session
    from pyspark_tailrace.sink import BatchSink, StreamSink
    from pyspark_tailrace.source import TailraceSource

    spark = local_session(master=master, config=SETTINGS)

    def troubled(message, batch):
        """What becomes of a task that has staged all of its rows, by micro-batch, partition and attempt."""
        from pyspark import TaskContext

        task = TaskContext.get()
        partition, attempt = task.partitionId(), task.attemptNumber()
        mark = folder / f"staged-{batch}-{partition}-{attempt}"
        mark.touch()
        match batch, partition, attempt:
            case ("retry", 0, 0 | 1) | ("job", 1, 0 | 1):
                raise RuntimeError("the task fails when all is staged")
            case ("the second wins", 1, 0) | ("the first wins", 1, 1):
                time.sleep(STALLED_S)
            case "the first wins", 1, 0:
                end = time.monotonic() + STALLED_S
                while not mark.with_name(f"staged-{batch}-1-1").exists() and time.monotonic() < end:
                    time.sleep(POLL_S)
        return message

    class TroubledStream(StreamSink):
        def write(self, iterator):
            message = super().write(iterator)
            return troubled(message, spec["batches"][message.batch])

    class TroubledJob(BatchSink):
        def write(self, iterator):
            return troubled(super().write(iterator), "job")

    class Troubled(TailraceSource):
        def streamWriter(self, schema, overwrite):
            return TroubledStream(super().streamWriter(schema, overwrite)._options)

        def writer(self, schema, overwrite):
            return TroubledJob(super().writer(schema, overwrite)._options)

    spark.dataSource.register(Troubled)
    schema = "key BINARY, value BINARY"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
    writer = stream.repartition(3).writeStream.format("tailrace").options(**spec["options"])
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.read.schema(schema).parquet(str(folder / "of-job")).repartition(3)
    rows.write.format("tailrace").options(**spec["options"]).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
