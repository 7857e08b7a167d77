import contextlib
import re
import sqlite3
import subprocess
import sys

import pytest

import tailrace
from tailrace.consuming.ring import RingChange, RingChunk
from tailrace.errors import BadPosition
from tailrace.indexes import AppliedMutation, SQLiteIndex, sqlite
from tailrace.indexes.checkpoint import Checkpoint

COLUMNS = {"city": "$.address.city", "text": "$.text"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index.db"


@pytest.fixture
def opened():
    """A function that makes and opens an index, closed when the test ends."""
    with contextlib.ExitStack() as stack:

        def make(path, **options):
            index = stack.enter_context(contextlib.closing(SQLiteIndex(path, **options)))
            index.open()
            return index

        yield make


def query(path, sql, *arguments):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = connection.execute(sql, arguments).fetchall()
        connection.commit()
        return found


def matches(path, words):
    found = "SELECT rowid FROM items_fts WHERE items_fts MATCH ?"
    sql = f"SELECT CAST(key AS TEXT) FROM items WHERE rowid IN ({found}) ORDER BY key"
    return [key for (key,) in query(path, sql, words)]


def mutation(key, value, seq):
    return AppliedMutation(0, key, value, seq, seq)


class TestTable:
    def test_columns_come_from_the_value(self, path, opened, make_checkpoint):
        index = opened(path, columns=COLUMNS)
        index.apply(
            [
                mutation(b"a", b'{"address": {"city": "Ulm"}, "text": "x"}', 1),
                mutation(b"b", b"no json \xff", 2),
                mutation(b"c", b'{"text": "caf\xe9"}', 3),
            ],
            make_checkpoint({0: 3}),
        )
        assert query(path, "SELECT key, city, text FROM items ORDER BY key") == [
            (b"a", "Ulm", "x"),
            (b"b", None, None),
            (b"c", None, "caf\ufffd"),
        ]
        assert query(path, "SELECT value FROM items WHERE key = ?", b"b") == [(b"no json \xff",)]
        index.apply([mutation(b"a", b"{}", 4)], make_checkpoint({0: 4}))
        assert query(path, "SELECT city, text FROM items WHERE key = ?", b"a") == [(None, None)]

    def test_the_table_and_columns_are_those_asked_for(self, path, opened, make_checkpoint):
        opened(path, table="order", columns={"group": "$.g"}).apply(
            [mutation(b"a", b'{"g": 1}', 5)], make_checkpoint({0: 5})
        )
        with contextlib.closing(sqlite3.connect(path)) as connection:
            found = connection.execute('SELECT * FROM "order"')
            assert [column[0] for column in found.description] == [
                "key",
                "value",
                "partition",
                "seq",
                "timestamp",
                "group",
            ]
            assert found.fetchall() == [(b"a", b'{"g": 1}', 0, 5, 5, 1)]

    def test_other_programs_read_while_it_is_followed(self, path, opened, make_checkpoint, put):
        index = opened(path)
        index.apply([put(b"a", "one", 1)], make_checkpoint({0: 1}))
        with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM items").fetchone() == (1,)
            index.apply([put(b"b", "two", 2)], make_checkpoint({0: 2}))
            assert reader.execute("SELECT count(*) FROM items").fetchone() == (1,)
            reader.execute("COMMIT")
            assert reader.execute("SELECT count(*) FROM items").fetchone() == (2,)

    def test_other_programs_may_add_indexes(self, path, opened, make_checkpoint, put):
        index = opened(path, columns=COLUMNS)
        query(path, "CREATE INDEX items_city ON items (city)")
        index.apply([put(b"a", "one", 1)], make_checkpoint({0: 1}))
        assert query(path, "SELECT count(*) FROM items WHERE city IS NULL") == [(1,)]

    def test_a_seq_that_sqlite_has_no_room_for(self, path, opened, make_checkpoint, put):
        index = opened(path)
        with pytest.raises(ValueError, match="more than 63 bits"):
            index.apply([put(b"b", "x", 1), put(b"a", "x", 2**63)], make_checkpoint({0: 1}))
        assert query(path, "SELECT * FROM items") == []

    def test_a_full_disk_stores_nothing(self, path, opened, make_checkpoint, put):
        """The bound on the file's pages stands for the disk; SQLite rolls back by itself there."""
        index = opened(path)
        index.apply([put(b"a", "one", 1)], make_checkpoint({0: 1}))
        index._connection.execute("PRAGMA max_page_count = 20")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            index.apply([put(b"a", "two", 2), put(b"b", "x" * 200_000, 3)], make_checkpoint({0: 3}))
        assert query(path, "SELECT key, seq FROM items") == [(b"a", 1)]
        index.apply([put(b"a", "three", 4)], make_checkpoint({0: 4}))
        assert query(path, "SELECT key, seq FROM items") == [(b"a", 4)]
        assert index.open() == make_checkpoint({0: 4})

    def test_only_changed_partitions_are_written(self, path, opened, make_checkpoint):
        index = opened(path)
        index.apply([], make_checkpoint({0: 1, 1: 1}))
        query(path, "UPDATE tailrace_checkpoint SET seq = 77 WHERE partition = 0")
        index.apply([], make_checkpoint({0: 1, 1: 2}))
        assert query(path, "SELECT partition, seq FROM tailrace_checkpoint") == [(0, 77), (1, 2)]


class TestFullText:
    @pytest.fixture
    def index(self, path, opened):
        return opened(path, columns={"title": "$.title", "text": "$.text"}, full_text=["title", "text"])

    def test_it_follows_every_change(self, index, path, make_checkpoint, put):
        index.apply([put(b"a", "red apple", 1), put(b"b", "red pear", 2)], make_checkpoint({0: 2}))
        assert matches(path, "red") == ["a", "b"]
        index.apply([put(b"a", "green apple", 3), put(b"c", "blue plum", 4)], make_checkpoint({0: 4}))
        assert (matches(path, "red"), matches(path, "green"), matches(path, "title:c")) == (["b"], ["a"], ["c"])
        index.apply([put(b"b", None, 5), put(b"d", "red cherry", 6)], make_checkpoint({0: 6}))
        assert (matches(path, "red"), matches(path, "pear")) == (["d"], [])
        index.apply([put(b"a", "older", 1), put(b"c", None, 1)], make_checkpoint({0: 6}))
        assert (matches(path, "older"), matches(path, "blue")) == ([], ["c"])
        index.clear(0)
        assert matches(path, "red OR green OR blue") == []

    def test_a_batch_that_fails_leaves_it_as_it_was(self, index, path, make_checkpoint, put):
        index.apply([put(b"a", "red apple", 1)], make_checkpoint({0: 1}))
        with pytest.raises(ValueError, match="63 bits"):
            index.apply([put(b"a", "green apple", 2), put(b"b", "x", 2**63)], make_checkpoint({0: 2}))
        assert (matches(path, "red"), matches(path, "green")) == (["a"], [])

    def test_values_without_text(self, index, path, make_checkpoint, put):
        index.apply(
            [mutation(b"a", b"no json", 1), mutation(b"b", b'{"text": [1, "two"]}', 2)], make_checkpoint({0: 2})
        )
        assert matches(path, "two") == ["b"]
        index.apply([mutation(b"a", b'{"text": "now"}', 3), mutation(b"b", b"7", 4)], make_checkpoint({0: 4}))
        assert (matches(path, "two"), matches(path, "now")) == ([], ["a"])

    def test_numbers_that_are_equal_and_not_the_same_text(self, index, path, make_checkpoint):
        for seq, number in enumerate((b"1", b"1.0", b"true", b'"1"'), 1):
            index.apply([mutation(b"a", b'{"text": %s}' % number, seq)], make_checkpoint({0: seq}))
            query(path, "INSERT INTO items_fts (items_fts, rank) VALUES ('integrity-check', 1)")
        assert matches(path, "1") == ["a"]

    def test_vacuum_by_another_program_keeps_it_right(self, index, path, make_checkpoint, put):
        names = [b"k%d" % number for number in range(50)]
        index.apply(
            [put(name, f"word{name.decode()}", 1 + n) for n, name in enumerate(names)], make_checkpoint({0: 50})
        )
        index.apply([put(name, None, 100) for name in names[::3]], make_checkpoint({0: 100}))
        query(path, "VACUUM")
        assert matches(path, "wordk7") == ["k7"]
        index.apply([put(b"k7", "seven", 101), put(b"new", "fresh", 102)], make_checkpoint({0: 102}))
        assert (matches(path, "wordk7"), matches(path, "seven"), matches(path, "fresh")) == ([], ["k7"], ["new"])
        query(path, "INSERT INTO items_fts (items_fts, rank) VALUES ('integrity-check', 1)")

    def test_an_sqlite_without_fts5_is_a_clear_error(self, path, monkeypatch):
        monkeypatch.setattr(sqlite, "has_fts5", lambda connection: False)
        with pytest.raises(RuntimeError, match=r"FTS5.*leave full_text away"):
            SQLiteIndex(path, columns=COLUMNS, full_text=["text"]).open()
        index = SQLiteIndex(path, columns=COLUMNS)
        assert index.open() is None
        index.close()


class TestOpening:
    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"columns": {"city": "$.address.city"}}, "was made with columns"),
            ({"columns": {**COLUMNS, "text": "$.body"}}, "was made with columns"),
            ({"columns": COLUMNS, "full_text": ["text"]}, "was made with full_text"),
        ],
    )
    def test_otherwise_than_it_was_made(self, path, opened, make_checkpoint, put, options, says):
        index = opened(path, columns=COLUMNS)
        index.apply([put(b"a", "one", 1)], make_checkpoint({0: 1}))
        index.close()
        with pytest.raises(ValueError, match=rf"(?s){says}.*delete the file"):
            SQLiteIndex(path, **options).open()
        assert SQLiteIndex(path, columns=dict(reversed(COLUMNS.items()))).open() == make_checkpoint({0: 1})

    def test_a_newer_format_is_refused_by_name(self, path, opened):
        opened(path).close()
        query(path, "UPDATE tailrace_index SET value = '2' WHERE name = 'format'")
        before = query(path, "SELECT name, value FROM tailrace_index ORDER BY name")
        says = (
            f"{path} was made with format = 2; tailrace {tailrace.__version__} knows formats up to 1: use the release"
        )
        with pytest.raises(ValueError, match=re.escape(says)):
            SQLiteIndex(path).open()
        assert query(path, "SELECT name, value FROM tailrace_index ORDER BY name") == before

    def test_a_file_that_is_no_database(self, path):
        path.write_bytes(b"hello " * 1000)
        with pytest.raises(ValueError, match="is not an SQLite file"):
            SQLiteIndex(path).open()
        assert path.read_bytes() == b"hello " * 1000

    def test_a_database_with_such_a_table_of_its_own(self, path):
        query(path, "CREATE TABLE Items (a)")
        with pytest.raises(ValueError, match=r"holds \['items'\] already"):
            SQLiteIndex(path).open()

    def test_a_database_with_other_tables(self, path, opened, make_checkpoint, put):
        query(path, "CREATE TABLE mine (a)")
        opened(path).apply([put(b"a", "one", 1)], make_checkpoint({0: 1}))
        assert query(path, "SELECT count(*) FROM mine") == [(0,)]

    def test_a_missing_directory(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"directory of the index .* does not exist"):
            SQLiteIndex(tmp_path / "nowhere" / "index.db").open()

    def test_an_sqlite_that_is_too_old(self, path, monkeypatch):
        monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 8, 2))
        with pytest.raises(RuntimeError, match=r"needs SQLite 3\.30\.0 or newer; this Python has 3\.8\.2"):
            SQLiteIndex(path).open()

    @pytest.mark.parametrize("text", ["trp1.AAAA", ""])
    def test_a_damaged_checkpoint(self, path, opened, make_checkpoint, text):
        opened(path).apply([], make_checkpoint({0: 1, 3: 5}))
        query(path, "UPDATE tailrace_checkpoint SET position = ? WHERE partition = 3", text)
        with pytest.raises(BadPosition, match=r"index\.db: the checkpoint of partition 3 .* delete the file"):
            SQLiteIndex(path).open()

    def test_a_checkpoint_row_of_another_partition(self, path, opened, make_checkpoint):
        opened(path).apply([], make_checkpoint({0: 1}))
        query(path, "UPDATE tailrace_checkpoint SET partition = 3")
        with pytest.raises(BadPosition, match="it is of other partitions"):
            SQLiteIndex(path).open()

    def test_calls_before_open(self, path, make_checkpoint):
        with pytest.raises(RuntimeError, match="is not open"):
            SQLiteIndex(path).apply([], make_checkpoint({0: 1}))
        assert not path.exists()

    def test_a_second_follower_ends_the_first(self, path, opened, make_checkpoint, put):
        first = opened(path)
        first.apply([put(b"a", "one", 1)], make_checkpoint({0: 1}))
        second = opened(path)
        second.apply([put(b"a", "two", 2)], make_checkpoint({0: 2}))
        for call in (
            lambda: first.apply([put(b"b", "x", 2)], make_checkpoint({0: 1})),
            lambda: first.rollback(0, 0),
            lambda: first.clear(0),
        ):
            with pytest.raises(RuntimeError, match="another follower has opened"):
                call()
        assert query(path, "SELECT key, seq FROM items") == [(b"a", 2)]
        assert second.open() == make_checkpoint({0: 2})


DIES = """
import os, sys
sys.path[:0] = sys.argv[2:]
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.model.failover import FailoverLog
from tailrace.indexes import AppliedMutation, SQLiteIndex
from tailrace.model.position import Position, Positions

index = SQLiteIndex(sys.argv[1], columns={"text": "$.text"}, full_text=["text"])
index.open()
log = FailoverLog([(b"u" * 16, 1, 0)])

def apply(seq):
    batch = [AppliedMutation(0, b"%d" % n, b'{"text": "batch%d"}' % seq, seq * 10_000 + n, 0) for n in range(2_000)]
    index.apply(batch, Checkpoint(Positions(b"c" * 16, b"f" * 16, {0: Position.at(log, seq)})))

apply(1)
index._connection.set_trace_callback(lambda sql: os._exit(9) if sql == "COMMIT" else None)
apply(2)
"""


@pytest.mark.slow
def test_killed_before_the_commit_both_are_of_the_batch_before(path, opened, make_checkpoint):
    """A real process that ends without a word while the batch's pages are partly in the file already."""
    assert subprocess.run([sys.executable, "-c", DIES, path, *sys.path], check=False).returncode == 9
    index = SQLiteIndex(path, columns={"text": "$.text"}, full_text=["text"])
    with contextlib.closing(index):
        assert index.open() == make_checkpoint({0: 1})
    assert (len(matches(path, "batch1")), matches(path, "batch2")) == (2_000, [])
    assert query(path, "SELECT min(seq), max(seq) FROM items") == [(10_000, 11_999)]
    query(path, "INSERT INTO items_fts (items_fts, rank) VALUES ('integrity-check', 1)")


def test_a_file_of_before_there_were_rings_gets_them(tmp_path, make_checkpoint):
    path = tmp_path / "index.db"
    index = SQLiteIndex(path)
    index.open()
    index.apply([], make_checkpoint({0: 5}))
    index.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE tailrace_ring")
        connection.execute("DROP TABLE tailrace_ring_floor")
        connection.commit()
    assert index.open() == make_checkpoint({0: 5})
    change = RingChange(5, None, (RingChunk.of([6], [b"k"]),))
    index.apply([], Checkpoint(make_checkpoint({0: 6}).positions, {0: change}))
    index.close()
    assert index.open().rings == {0: change}
    index.close()


def test_a_damaged_ring_is_named(tmp_path, make_checkpoint):
    path = tmp_path / "index.db"
    index = SQLiteIndex(path)
    index.open()
    change = RingChange(0, None, (RingChunk.of([6], [b"k"]),))
    index.apply([], Checkpoint(make_checkpoint({0: 6}).positions, {0: change}))
    index.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE tailrace_ring SET entries = x'00'")
        connection.commit()
    with pytest.raises(BadPosition, match="the ring of partition 0 cannot be read"):
        index.open()


def test_chunks_of_single_writes_are_merged(tmp_path, make_checkpoint):
    """Or a follower of single writes would store a row for each, and read them all at the next start."""
    index = SQLiteIndex(tmp_path / "index.db")
    index.open()
    positions = make_checkpoint({0: 1}).positions
    keys = {seq: b"key %d" % seq for seq in range(1, 201)}
    for seq, key in keys.items():
        index.apply([], Checkpoint(positions, {0: RingChange(0, None, (RingChunk.of([seq], [key]),))}))
    index.close()
    found = index.open().rings[0].chunks
    assert len(found) < 20
    assert {seq: key for chunk in found for seq, key in chunk.entries()} == keys
    index.close()
