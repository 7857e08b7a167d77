"""Orders and their amount by city, from a feed of orders to a feed of totals, kept up to date as orders come.

    tailrace serve --data data                                   # in another terminal
    tailrace feed create shop-orders --retention history         # and some `tailrace put shop-orders ...`
    python docs/examples/totals_by_city.py shop-orders shop-totals

An order is ``{"city": "Oslo", "amount": 30}``; each mutation counts as an order of its own, as a key that is put once.
``totals`` has a row for each city, ``{"orders": 2, "amount": 70}``.

The sums are in the state of the query, in its checkpoint, so a run reads only the orders that came since. A micro-batch
writes the rows of those cities whose sums have changed: output mode ``update``. Spark does not permit that mode to a
sink that is written in Python, and ``complete``, which would replace the whole feed each time, the sink refuses; so the
rows go through ``foreachBatch`` and ``upsert_batch``, which publishes each micro-batch once, whatever fails.
"""

import argparse

from pyspark.sql import functions as F

from pyspark_tailrace import decode, local_session, upsert_batch


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("orders", help="a feed")
    parser.add_argument("totals", help="the feed that is written to; it is made")
    parser.add_argument("--url", default="tailrace://127.0.0.1:4700")
    parser.add_argument("--checkpoint", help="Spark's, a folder that is made; TOTALS-checkpoint where it is not given")
    options = parser.parse_args(arguments)
    options.checkpoint = options.checkpoint or f"{options.totals}-checkpoint"
    return options


def totals_by_city(orders):
    """A row for each city; a row without a city, as of a value that is no JSON, is left out."""
    totals = (
        decode(orders.where("NOT deleted"), "city STRING, amount BIGINT")
        .where("value.city IS NOT NULL")
        .groupBy("value.city")
        .agg(F.count("*").alias("orders"), F.sum("value.amount").alias("amount"))
    )
    return totals.select(F.col("city").alias("key"), F.to_json(F.struct("orders", "amount")).alias("value"))


def run(spark, options):
    orders = spark.readStream.format("tailrace").options(url=options.url, feed=options.orders).load()
    query = (
        totals_by_city(orders)
        .writeStream.outputMode("update")
        .foreachBatch(upsert_batch(url=options.url, feed=options.totals, create_feed=True, partitions=4))
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    given = parse()
    session = local_session(config={"spark.sql.shuffle.partitions": 4})
    run(session, given)
    session.stop()
