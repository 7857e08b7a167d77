"""Joins two feeds, orders and their payments, and writes what comes of it to a third one.

    tailrace serve --data data                                   # in another terminal
    tailrace feed create shop-orders --retention history         # and some `tailrace put shop-orders ...`
    tailrace feed create shop-payments --retention history       # and some `tailrace put shop-payments ...`
    python docs/examples/join_feeds.py shop-orders shop-payments shop-settled

An order has the order's id as its key, and a payment some key of its own:

    o-1    {"customer": "ada", "amount": 30, "at": "2026-01-05T10:00:00Z"}
    p-1    {"order": "o-1", "at": "2026-01-05T10:20:00Z"}

An order that is paid within an hour comes out with ``paid_at``. One that is not comes out without, as soon as nothing
can change that any more: when the watermark of both feeds, the latest ``at`` of each less ten minutes for those that
come late, is beyond its hour. Until then Spark keeps it in the state of the query, and after that forgets it: that is
what bounds the state. So an order waits until orders *and* payments have gone on.

Each mutation counts as an event of its own, as a key that is put once. Both feeds keep their history, so that a
micro-batch that is run again is given the same rows. Run again, the program joins what came since.
"""

import argparse

from pyspark.sql import functions as F

from pyspark_tailrace import decode, local_session

LATE = "10 minutes"
TO_PAY = "1 hour"


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("orders", help="a feed")
    parser.add_argument("payments", help="a feed")
    parser.add_argument("settled", help="the feed that is written to; it is made")
    parser.add_argument("--url", default="tailrace://127.0.0.1:4700")
    parser.add_argument("--checkpoint", help="Spark's, a folder that is made; SETTLED-checkpoint where it is not given")
    options = parser.parse_args(arguments)
    options.checkpoint = options.checkpoint or f"{options.settled}-checkpoint"
    return options


def read_events(spark, options, feed, columns):
    """The values of a feed as a stream with these columns, and `time`, by which it is joined."""
    mutations = spark.readStream.format("tailrace").options(url=options.url, feed=feed).load()
    events = decode(mutations.where("NOT deleted"), columns)
    return events.select("key", "value.*", F.to_timestamp("value.at").alias("time")).withWatermark("time", LATE)


def join(orders, payments):
    """Every order, once: with its payment, or without."""
    paid_in_time = F.expr(
        f"orders.key = payments.order_key AND payments.time BETWEEN orders.time AND orders.time + INTERVAL {TO_PAY}"
    )
    paid = payments.select(F.col("order").cast("binary").alias("order_key"), F.col("at").alias("paid_at"), "time")
    joined = orders.alias("orders").join(paid.alias("payments"), paid_in_time, "left_outer")
    # to_json leaves out what is null: `paid_at`, of an order that was not paid.
    value = F.to_json(F.struct("orders.customer", "orders.amount", "orders.at", "payments.paid_at"))
    return joined.select("orders.key", value.alias("value"))


def run(spark, options):
    orders = read_events(spark, options, options.orders, "customer STRING, amount BIGINT, at STRING")
    payments = read_events(spark, options, options.payments, "order STRING, at STRING")
    query = (
        join(orders, payments)
        .writeStream.format("tailrace")
        .options(url=options.url, feed=options.settled, create_feed=True, partitions=4)
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
