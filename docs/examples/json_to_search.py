"""JSON files to a feed, by Spark, and from the feed to an index with full text that is searched.

    tailrace serve --data data                                   # in another terminal
    python docs/examples/json_to_search.py news journal          # the files of the folder, the word to look for

A file has an article a line: ``{"id": "a-1", "title": "...", "text": "...", "changed": "2026-01-05T09:00:00Z"}``, and
``"gone": true`` for one that is no more. Spark's checkpoint knows which files were read, and the index knows where it
stands in the feed: run again, the program reads only what is new, and searches the present state of all of it.
"""

import argparse
import contextlib
import sqlite3

import trio
from pyspark.sql import functions as F

import tailrace
from pyspark_tailrace import local_session, partition_of

COLUMNS = "id STRING, title STRING, text STRING, changed TIMESTAMP, gone BOOLEAN"
PARTITIONS = 4

SEARCH = """
    SELECT CAST(items.key AS TEXT), items.title, snippet(items_fts, 1, '[', ']', '...', 8)
    FROM items_fts JOIN items ON items.rowid = items_fts.rowid
    WHERE items_fts MATCH ? ORDER BY rank
"""


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the files, *.json")
    parser.add_argument("query", help="what to look for, as SQLite's FTS5 takes it: a word, 'one AND another'")
    parser.add_argument("--url", default="tailrace://127.0.0.1:4700")
    parser.add_argument("--feed", default="news")
    parser.add_argument("--index", default="news.db", help="the index, a file that is made")
    parser.add_argument("--checkpoint", default="news-checkpoint", help="Spark's, a folder that is made")
    return parser.parse_args(arguments)


def write_feed(spark, options):
    """Every change that is in the files and was not written before goes to the feed, once."""
    articles = spark.readStream.schema(COLUMNS).json(options.folder)
    rows = articles.select(
        F.col("id").alias("key"),
        F.to_json(F.struct("title", "text")).alias("value"),
        F.col("gone").alias("deleted"),
        "changed",
    )
    # An article may change twice in one micro-batch: all its rows go through one task, which puts them in order.
    query = (
        rows.repartition(PARTITIONS, partition_of("key", PARTITIONS))
        .writeStream.format("tailrace")
        .options(url=options.url, feed=options.feed, create_feed=True, partitions=PARTITIONS, order_by="changed")
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


async def update_index(options):
    """Follows the feed until the index has all that was written above."""
    index = tailrace.indexes.SQLiteIndex(
        options.index, columns={"title": "$.title", "text": "$.text"}, full_text=["title", "text"]
    )
    async with tailrace.connect(options.url) as client, client.feed(options.feed).follow(index) as follower:
        await follower.barrier()


def search(options):
    with contextlib.closing(sqlite3.connect(options.index)) as database:
        return database.execute(SEARCH, [options.query]).fetchall()


def run(spark, options):
    write_feed(spark, options)
    trio.run(update_index, options)
    for key, title, snippet in search(options):
        print(f"{key}  {title}: {snippet}")


if __name__ == "__main__":
    given = parse()
    session = local_session()
    run(session, given)
    session.stop()
