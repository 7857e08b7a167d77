"""A streaming job in a process of its own, which is killed with its Java and all its Python workers at one point.

Run as a program: its argument is JSON (``JobSpec`` of test_exactly_once.py). Whoever gets to the point kills everything
that is of this session: none of it can clean up, or tell anybody.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark_tailrace import local_session, publishing
from pyspark_tailrace.sink import StreamSink
from pyspark_tailrace.source import TailraceSource

# Tests run many short-lived ones.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def kill_session():
    """SIGKILL to all processes of this one's session, and to itself last. What is killed can't come back in between."""
    session, own = os.getsid(0), os.getpid()
    for _ in range(3):
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and int(name) != own and os.getsid(int(name)) == session:
                    os.kill(int(name), signal.SIGKILL)
            except ProcessLookupError:
                pass
    os.kill(own, signal.SIGKILL)


class KilledSink(StreamSink):
    """Kills at ``point`` of micro-batch ``batch``."""

    def __init__(self, options, point, batch):
        super().__init__(options)
        self._point = point
        self._batch = batch

    def _is_at(self, point, batch):
        return (point, batch) == (self._point, self._batch)

    def write(self, iterator):
        from pyspark import TaskContext

        batch = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
        if self._is_at("begin of write", batch):
            kill_session()

        def counted():
            for part in iterator:
                yield part
                if self._is_at("within write", batch):
                    kill_session()

        return super().write(counted())

    def commit(self, messages, batchId):
        if self._is_at("before publish", batchId):
            kill_session()
        if self._is_at("publish sent", batchId):
            publishing._publish = _send_and_kill
        super().commit(messages, batchId)
        if self._is_at("publish answered", batchId):
            kill_session()


def _send_and_kill(options, sink, batch, origin, stages, if_unknown):
    """The request has left this machine; whether it is handled nobody here will know."""
    with publishing.cached_feed(options) as feed:
        link = feed._runner._link
        send = link._send

        def send_and_kill(sock):
            send(sock)
            kill_session()

        link._send = send_and_kill
        feed.publish(sink, batch, [share.stage for share in stages], origin=origin)


def main(spec):
    spark = local_session(
        master=f"local[{spec['cores']}]",
        config={
            "spark.driver.extraJavaOptions": JAVA,
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": 2,
        },
    )

    class Source(TailraceSource):
        @classmethod
        def name(cls):
            return "killed"  # Spark 4.0 registers no other source in place of one that it has found

        def streamWriter(self, schema, overwrite):
            sink = super().streamWriter(schema, overwrite)
            return KilledSink(sink._options, spec["point"], spec["batch"])

    spark.dataSource.register(Source)
    folder = Path(spec["folder"])
    reader = spark.readStream.schema("key BINARY, value BINARY").option("maxFilesPerTrigger", 1)
    frame = reader.parquet(str(folder / "in")).repartition(spec["tasks"])
    writer = frame.writeStream.format(Source.name()).options(**spec["options"])
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    print("rows", sum(progress.numInputRows for progress in query.recentProgress), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
