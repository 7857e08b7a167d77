"""A client of a Spark Connect server: writes, reads, copies and counts; prints what it has read, as JSON.

Run as a program: ``connect_job.py HOST:PORT URL FOLDER``. It has to be a process of its own: in one that runs a Java
for another session, PySpark makes no session of a server.
"""

from __future__ import annotations

import json
import sys

import grpc
from pyspark.errors.exceptions.connect import SparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_tailrace import decode, partition_of, register, upsert_batch

ROWS = 1000
PARTITIONS = 4
SERVER_STARTS_S_MAX = 300.0


def wait_for(address):
    """Returns once the server accepts calls."""
    with grpc.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 500)]) as channel:
        grpc.channel_ready_future(channel).result(timeout=SERVER_STARTS_S_MAX)


def started(writer):
    """Starts a query. Spark gives its Python worker ten seconds to begin, which may be too little on a busy machine."""
    for _ in range(2):
        try:
            return writer.start()
        except SparkException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return writer.start()


class Job:
    def __init__(self, spark, url, folder):
        self.spark = spark
        self.url = url
        self.folder = folder

    def options(self, feed):
        return {"url": self.url, "feed": feed, "create_feed": "true", "partitions": str(PARTITIONS)}

    def write(self):
        value = F.to_json(F.struct(F.col("id").alias("n")))
        rows = self.spark.range(ROWS).select(F.col("id").cast("string").alias("key"), value.alias("value"))
        rows = rows.repartition(PARTITIONS, partition_of("key", PARTITIONS))
        rows.write.format("tailrace").options(**self.options("rows")).mode("append").save()

    def read(self):
        rows = self.spark.read.format("tailrace").options(url=self.url, feed="rows").load()
        total = decode(rows, "n BIGINT").agg(F.sum("value.n")).collect()[0][0]
        return {"rows": rows.count(), "total": total, "filtered": rows.where(F.col("key") == F.lit(b"17")).count()}

    def stream(self):
        return self.spark.readStream.format("tailrace").options(url=self.url, feed="rows").load()

    def run(self, writer, checkpoint):
        """Runs a query over all there is; gives what it has failed with, or nothing."""
        query = started(writer.option("checkpointLocation", f"{self.folder}/{checkpoint}").trigger(availableNow=True))
        try:
            query.awaitTermination()
        except Exception as error:
            return str(error)
        return ""

    def copy(self):
        rows = self.stream().select("key", "value", "deleted")
        return self.run(rows.writeStream.format("tailrace").options(**self.options("copy")), "copy")

    def count(self, name, **more):
        digit = F.substring(F.col("key").cast("string"), 1, 1)
        counts = self.stream().groupBy(digit.alias("key")).agg(F.count("*").cast("string").alias("value"))
        upsert = upsert_batch(**self.options("counts"), **more)
        return self.run(counts.writeStream.outputMode("update").foreachBatch(upsert), name)


def main(address, url, folder):
    wait_for(address)
    spark = SparkSession.builder.remote(f"sc://{address}").getOrCreate()
    register(spark)
    job = Job(spark, url, folder)
    job.write()
    found = job.read()
    found["copying"] = [job.copy(), job.copy()]
    found["counting"] = job.count("counts", sink_id="counts")
    found["counting without a name"] = job.count("nameless")
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
