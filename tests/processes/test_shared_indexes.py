"""Members of a group fill one index in a database, and are stopped, and killed, while they change it.

A member notes each row beside it, in the same transaction. So a row that was applied twice, or by a former owner after
the next one had begun, is there twice.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import uuid

import psycopg
import pytest
import trio
from tests.tailrace.indexes.postgres_server import postgres_server
from tests.tailrace_server.replication.made_set import until

import tailrace

from .node import NodeProcess

pytestmark = pytest.mark.slow

ROWS = 400
PARTITIONS = 4
# The server ends the session of a member that was stopped in a transaction after 10 s.
LEASE = ("--set", "limits.group_lease_s=2")
# A member. It stops itself at a step of the call that applies rows, if it is told to: before the transaction, in it
# before or after the rows are stored, or when it is committed.
PROGRAM = """
import signal, sys, tailrace, trio
from tailrace.indexes import PostgresIndex, SQLiteIndex
url, kind, place, schema, stop_in, end = sys.argv[1:]

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def reach(step):
    global stop_in
    if step == stop_in:
        stop_in = ""
        say("stopping")
        signal.raise_signal(getattr(signal, end))  # this thread stops at once; os.kill would let it run on for a while

class Noting:
    def _complete(self, connection):
        super()._complete(connection)
        connection.execute("CREATE TABLE IF NOT EXISTS noted (partition bigint, seq bigint)")

    def _store_mutations(self, connection, mutations):
        if len(mutations):
            reach("rows")
        super()._store_mutations(connection, mutations)
        rows = list(zip(mutations.partitions, mutations.seqs))
        if rows:
            connection.executemany("INSERT INTO noted VALUES (?, ?)", rows)
            reach("stored")

    def apply(self, mutations, checkpoint):
        if len(mutations):
            reach("begin")
        super().apply(mutations, checkpoint)
        if len(mutations):
            reach("committed")

class Postgres(Noting, PostgresIndex): pass
class SQLite(Noting, SQLiteIndex): pass

async def main():
    async with tailrace.connect(url, retry_for=100) as client:
        index = SQLite(place) if kind == "sqlite" else Postgres(place, schema=schema)
        async with client.feed("orders").follow(index, group="indexers") as follower:
            while True:
                say("owns", *sorted(each.partition for each in follower.status().partitions))
                await trio.sleep(0.05)

trio.run(main)
"""


class Store:
    """The database, as another program sees it."""

    def __init__(self, kind, place, schema):
        self.kind, self.place, self.schema = kind, place, schema

    def query(self, sql):
        try:
            if self.kind == "sqlite":
                with contextlib.closing(sqlite3.connect(self.place)) as connection:
                    return connection.execute(sql).fetchall()
            with psycopg.connect(self.place, options=f"-c search_path={self.schema}") as connection:
                return connection.execute(sql).fetchall()
        except (sqlite3.OperationalError, psycopg.errors.UndefinedTable):
            return []  # no member has made the tables yet

    def keys(self):
        return {bytes(key) for (key,) in self.query("SELECT key FROM items")}

    def twice(self):
        return self.query("SELECT partition, seq FROM noted GROUP BY partition, seq HAVING count(*) > 1")


@pytest.fixture(scope="module")
def server():
    with postgres_server() as server:
        yield server


@pytest.fixture
def store(kind, tmp_path, request):
    if kind == "sqlite":
        yield Store(kind, str(tmp_path / "index.db"), "")
        return
    server, schema = request.getfixturevalue("server"), f"s{uuid.uuid4().hex}"
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    yield Store(kind, server.conninfo, schema)


class Member:
    """A process of the group."""

    def __init__(self, url, store, nursery, stop_in="", end="SIGSTOP"):
        words = [url, store.kind, store.place, store.schema, stop_in, end]
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True)
        self.owned, self.has_stopped = set(), False
        nursery.start_soon(self._read)

    async def _read(self):
        while line := await trio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True):
            kind, *partitions = line.split()
            self.has_stopped |= kind == "stopping"
            if kind == "owns":
                self.owned = set(partitions)
        self.process.stdout.close()


@pytest.fixture
async def start_member(nursery, store):
    members = []

    def start(url, *stop):
        members.append(Member(url, store, nursery, *stop))
        return members[-1]

    yield start
    for member in members:
        member.process.kill()
        member.process.wait()
    await until(lambda: all(member.process.stdout.closed for member in members))
    nursery.cancel_scope.cancel()


@pytest.fixture
async def feed(tmp_path):
    node = NodeProcess(tmp_path / "node", options=LEASE)
    node.start()
    try:
        async with tailrace.connect(node.url, retry_for=100) as client:
            yield await client.create_feed("orders", partitions=PARTITIONS), node.url
    finally:
        node.stop()


async def fill(feed, first=0):
    await feed.write([tailrace.Put(b"k%04d" % number, b"v") for number in range(first, first + ROWS)])


def keys(count):
    return {b"k%04d" % number for number in range(count)}


# SQLite has one writer at a time: a member that is stopped in a transaction keeps the file until it goes on.
STOPS = [("postgres", step) for step in ("stored", "begin", "rows", "committed")]
STOPS += [("sqlite", step) for step in ("begin", "committed")]
# One of each kind runs in `make test`, the others in `make long`.
SHORT = {("postgres", "stored"), ("sqlite", "begin")}


def some_long(cases):
    return [case if case in SHORT else pytest.param(*case, marks=pytest.mark.long) for case in cases]


@pytest.mark.parametrize(("kind", "step"), some_long(STOPS))
async def test_a_member_that_was_stopped_past_its_lease_changes_nothing_when_it_wakes(feed, store, start_member, step):
    (feed, url) = feed
    await fill(feed)
    stopped = start_member(url, step)
    await until(lambda: stopped.has_stopped)
    other = start_member(url)
    await until(lambda: len(other.owned) == PARTITIONS)
    await fill(feed, ROWS)
    await until(lambda: store.keys() == keys(2 * ROWS))
    stopped.process.send_signal(signal.SIGCONT)
    await until(lambda: len(stopped.owned) == len(other.owned) == PARTITIONS // 2)
    await fill(feed, 2 * ROWS)
    await until(lambda: store.keys() == keys(3 * ROWS))
    assert store.twice() == []


KILLS = [(kind, step) for kind in ("postgres", "sqlite") for step in ("begin", "rows", "stored", "committed")]


@pytest.mark.parametrize(("kind", "step"), some_long(KILLS))
async def test_a_member_that_was_killed_leaves_whole_transactions(feed, store, start_member, step):
    (feed, url) = feed
    await fill(feed)
    killed = start_member(url, step, "SIGKILL")
    await until(lambda: killed.has_stopped)
    other = start_member(url)
    await until(lambda: len(other.owned) == PARTITIONS)
    await fill(feed, ROWS)
    await until(lambda: store.keys() == keys(2 * ROWS))
    assert store.twice() == []
