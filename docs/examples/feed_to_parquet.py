"""The mutations of a feed to Parquet files, by Spark; then what the files say is the present state.

    tailrace serve --data data                                   # in another terminal
    tailrace feed create shop-orders --retention history         # and some `tailrace put shop-orders ...`
    python docs/examples/feed_to_parquet.py shop-orders shop-parquet

``availableNow`` ends the query when it has written what was there at its start. Its checkpoint says where the next run
goes on, so each run adds files with what came since. Of a feed that keeps its history each mutation is in the files
once, deletions too. Of a compact feed, what was superseded before it was read is not there; the state is the same.

Spark lists the files that count in ``_spark_metadata``. Other readers see all files in the folder, and so, after a run
that was killed, also those of a micro-batch that was then written again.
"""

import argparse

from pyspark.sql import functions as F

from pyspark_tailrace import local_session


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("feed")
    parser.add_argument("folder", help="where the Parquet files go; it is made")
    parser.add_argument("--url", default="tailrace://127.0.0.1:4700")
    parser.add_argument("--checkpoint", help="Spark's, a folder that is made; FOLDER-checkpoint where it is not given")
    options = parser.parse_args(arguments)
    options.checkpoint = options.checkpoint or f"{options.folder}-checkpoint"
    return options


def write_parquet(spark, options):
    """Adds files with the mutations that are not in those that are there."""
    mutations = (
        spark.readStream.format("tailrace")
        .options(url=options.url, feed=options.feed)
        .option("maxRowsPerTrigger", 1_000_000)  # a micro-batch, so a file holds no more than that
        .load()
    )
    query = (
        mutations.writeStream.format("parquet")
        .option("path", options.folder)
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def latest(mutations):
    """Of each key the mutation with the greatest seq, unless it is a deletion; a key is in one partition only."""
    newest = F.max_by(F.struct("value", "deleted", "timestamp"), "seq").alias("newest")
    return mutations.groupBy("key").agg(newest).where("NOT newest.deleted").select("key", "newest.*")


def run(spark, options):
    write_parquet(spark, options)
    mutations = spark.read.parquet(options.folder)
    state = latest(mutations).select(F.col("key").cast("string"), F.col("value").cast("string"))
    print(f"{mutations.count()} mutations, {state.count()} keys")
    for key, value in state.orderBy("key").take(20):
        print(f"{key}  {value}")


if __name__ == "__main__":
    given = parse()
    session = local_session(config={"spark.sql.shuffle.partitions": 4})
    run(session, given)
    session.stop()
