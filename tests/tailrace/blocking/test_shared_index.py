"""A shared index without async."""

from __future__ import annotations

import contextlib
import sqlite3
import time

import pytest

from tailrace.indexes import MemoryIndex, SQLiteIndex

SECONDS_MAX = 60.0


def count(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT count(*) FROM items").fetchone()[0]


def wait(condition):
    gives_up_at = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < gives_up_at
        time.sleep(0.01)


def partitions(follower):
    return {each.partition for each in follower.status().partitions}


def test_members_share_an_index(feed, tmp_path):
    path = tmp_path / "index.db"
    with feed.follow(SQLiteIndex(path), group="g") as one:
        version = feed.put(b"first", b"v")
        one.wait_for(version, timeout=SECONDS_MAX)
        with feed.follow(SQLiteIndex(path), group="g") as two:
            wait(lambda: len(partitions(one)) == len(partitions(two)) == 2)
            for number in range(40):
                feed.put(b"%d" % number, b"v")
            wait(lambda: count(path) == 41)
            wait(lambda: one.applied_rows + two.applied_rows >= 41)  # counted after the transaction
            assert one.applied_rows + two.applied_rows == 41
            one.barrier(timeout=SECONDS_MAX)
        wait(lambda: len(partitions(one)) == 4)
        feed.delete(b"first")
        wait(lambda: count(path) == 40)


def test_an_index_that_cannot_be_shared_is_refused(feed):
    with pytest.raises(TypeError, match="cannot be shared"):
        feed.follow(MemoryIndex(), group="g")
