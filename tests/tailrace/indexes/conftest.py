"""One harness for every index, so that the contract is tested on all of them alike."""

import contextlib
import json
import sqlite3
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest

from tailrace.indexes import AppliedMutation, MemoryIndex, SQLiteIndex
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions

CLUSTER, FEED = b"c" * 16, b"f" * 16
LOG = FailoverLog([(b"u" * 16, 1, 0)])


class Harness:
    """An index under test, opened; ``rows()`` is what it holds: {key: (value, partition, seq, timestamp)}."""

    def __init__(self, index):
        self.index = index
        self.index.open()

    def reopen(self):
        self.index.close()
        return self.index.open()

    def check(self):
        """Walk whatever has to agree inside of the index."""


class MemoryHarness(Harness):
    def __init__(self, path):
        super().__init__(MemoryIndex())

    def rows(self):
        assert self.index.state.keys() == self.index.versions.keys()
        assert self.index.snapshot() == self.index.state
        return {key: (value, *self.index.versions[key]) for key, value in self.index.state.items()}


class SQLiteHarness(Harness):
    options: ClassVar = {}

    def __init__(self, path):
        self.path = path / "index.db"
        super().__init__(SQLiteIndex(self.path, **self.options))

    def query(self, sql, *arguments):
        """As another program, on a connection of its own."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            found = connection.execute(sql, arguments).fetchall()
            connection.commit()
            return found

    def rows(self):
        return {row[0]: row[1:] for row in self.query("SELECT key, value, partition, seq, timestamp FROM items")}

    def check(self):
        assert self.query("PRAGMA integrity_check") == [("ok",)]


class FullTextHarness(SQLiteHarness):
    options: ClassVar = {"columns": {"title": "$.title", "text": "$.text"}, "full_text": ["text", "title"]}

    def check(self):
        super().check()
        self.query("INSERT INTO items_fts (items_fts, rank) VALUES ('integrity-check', 1)")


HARNESSES = {"memory": MemoryHarness, "sqlite": SQLiteHarness, "sqlite with full text": FullTextHarness}


@pytest.fixture(params=HARNESSES)
def make_harness(request):
    """A function that gives a context with a new `Harness`; for tests that need one for each example."""

    @contextlib.contextmanager
    def make():
        with tempfile.TemporaryDirectory() as directory:
            harness = HARNESSES[request.param](Path(directory))
            with contextlib.closing(harness.index):
                yield harness

    return make


@pytest.fixture
def harness(make_harness):
    with make_harness() as made:
        yield made


@pytest.fixture
def make_checkpoint():
    """A function from {partition: seq}, or {partition: Position}, to a checkpoint."""

    def make(seqs, feed=FEED, cluster=CLUSTER):
        positions = {p: at if isinstance(at, Position) else Position.at(LOG, at) for p, at in seqs.items()}
        return Checkpoint(Positions(cluster, feed, positions))

    return make


@pytest.fixture
def put():
    """A function that makes a mutation whose value is JSON with a title and a text; text None deletes the key."""

    def make(key, text, seq, partition=0):
        value = None if text is None else json.dumps({"title": key.decode(), "text": text}).encode()
        return AppliedMutation(partition, key, value, seq, 1_000_000 + seq)

    return make
