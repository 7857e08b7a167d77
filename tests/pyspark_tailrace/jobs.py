"""A streaming query from files to a feed, for tests of what the sink makes of it."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_tailrace.source import FORMAT


class Job:
    """A streaming query over parquet files of one folder, a file a micro-batch unless ``files`` says otherwise."""

    def __init__(self, spark, folder, url, partitions):
        self.spark = spark
        self.folder = folder
        self.options = {"url": url, "feed": "orders", "create_feed": "true", "partitions": str(partitions)}
        self.files = 1
        self._count = 0
        (folder / "in").mkdir()

    def add_file(self, **columns):
        """Files are read in the order in which they were added."""
        path = self.folder / "in" / f"{self._count}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_700_000_000 + self._count, 1_700_000_000 + self._count))
        self._count += 1

    def add_rows(self, count=60):
        self.add_file(key=[b"%d-%d" % (self._count, row) for row in range(count)], value=[b"v"] * count)

    def frame(self, schema="key BINARY, value BINARY"):
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", self.files)
        return reader.parquet(str(self.folder / "in"))

    def start(self, frame=None, source=FORMAT, checkpoint="checkpoint", **options):
        writer = (self.frame() if frame is None else frame).writeStream.format(source)
        writer = writer.options(**self.options | options)
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        return writer.trigger(availableNow=True).start()

    def run(self, *arguments, **options):
        """Runs it over all there is; gives the query."""
        query = self.start(*arguments, **options)
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return query
