"""What is particular to the index in a PostgreSQL database."""

import contextlib
import itertools
import uuid

import psycopg
import pytest
from tests.tailrace.indexes.postgres_server import postgres_server

from tailrace.errors import BadPosition
from tailrace.indexes import AppliedMutation, IndexBusy, PostgresIndex

COLUMNS = {
    "city": "$.address.city",
    "age": ("$.age", "integer"),
    "size": ("$.size", "real"),
    "is_new": ("$.new", "boolean"),
    "document": ("$", "json"),
}


@pytest.fixture
def database(postgres):
    """A connection in a schema of its own."""
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.schema = f"s{uuid.uuid4().hex}"
        connection.execute(f"CREATE SCHEMA {connection.schema}")
        connection.execute(f"SET search_path = {connection.schema}")
        yield connection


@pytest.fixture
def opened(postgres, database):
    """A function that makes and opens an index, closed when the test ends."""
    with contextlib.ExitStack() as stack:

        def make(**options):
            made = PostgresIndex(postgres.conninfo, **{"schema": database.schema, **options})
            index = stack.enter_context(contextlib.closing(made))
            index.open()
            return index

        yield make


def mutation(key, value, seq):
    return AppliedMutation(0, key, value, seq, seq)


@pytest.mark.parametrize(
    "says",
    [
        "the database system is starting up",
        "the database system is not yet accepting connections",
        "the database system is in recovery mode",
        "the database system is shutting down",
    ],
)
def test_a_server_that_takes_no_connections_yet_is_waited_for(monkeypatch, says):
    def refuse(*_, **__):
        raise psycopg.OperationalError(f"connection failed: FATAL:  {says}")

    monkeypatch.setattr(psycopg, "connect", refuse)
    with pytest.raises(IndexBusy, match="is starting"):
        PostgresIndex("").open()


def test_columns_have_types(opened, database, make_checkpoint):
    index = opened(columns=COLUMNS)
    value = b'{"address": {"city": "U\\u0000lm"}, "age": 7, "size": 1, "new": true}'
    rows = [mutation(b"a", value, 1), mutation(b"b", b"no json \xff", 2), mutation(b"c", b'{"age": NaN}', 3)]
    index.apply(rows, make_checkpoint({0: 3}))
    columns = "city, age, size, is_new, document"
    document = {"address": {"city": "U\ufffdlm"}, "age": 7, "size": 1, "new": True}
    assert database.execute(f"SELECT {columns} FROM items ORDER BY key").fetchall() == [
        ("U\ufffdlm", 7, 1.0, True, document),
        (None, None, None, None, None),
        (None, None, None, None, None),
    ]


def test_a_database_has_several_indexes(opened, database, make_checkpoint, put):
    one, two = opened(table="One"), opened(table="two")
    one.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
    two.apply([put(b"b", "x", 2)], make_checkpoint({0: 2}, feed=b"g" * 16))
    found = database.execute('SELECT a.key, b.key FROM "One" AS a, two AS b').fetchall()
    assert found == [(b"a", b"b")]
    assert one.open() == make_checkpoint({0: 1})


def test_a_second_follower_ends_the_first(opened, make_checkpoint):
    first, second = opened(), opened()
    with pytest.raises(RuntimeError, match="another follower has opened"):
        first.apply([], make_checkpoint({0: 1}))
    second.apply([], make_checkpoint({0: 1}))


def test_a_lock_of_another_program_makes_it_busy(opened, database, make_checkpoint, put):
    index = opened()
    with database.transaction():
        database.execute("LOCK TABLE items")
        with pytest.raises(IndexBusy, match="another transaction has the lock"):
            index.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
    index.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
    assert database.execute("SELECT seq FROM items").fetchall() == [(1,)]


def test_a_lost_connection_is_made_again(opened, database, make_checkpoint, put):
    index = opened()
    index.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
    end_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname <> ''"
    database.execute(end_all)
    with pytest.raises(IndexBusy, match="was lost"):
        index.apply([put(b"a", "y", 2)], make_checkpoint({0: 2}))
    index.apply([put(b"a", "y", 2)], make_checkpoint({0: 2}))
    assert database.execute("SELECT seq FROM items").fetchall() == [(2,)]
    opened()  # another follower, which comes while this one has no connection
    database.execute(end_all)
    with pytest.raises(IndexBusy, match="was lost"):
        index.apply([], make_checkpoint({0: 3}))
    with pytest.raises(RuntimeError, match="another follower has opened"):
        index.apply([], make_checkpoint({0: 3}))


@pytest.mark.slow
def test_a_server_that_has_lost_commits_ends_the_follower(make_checkpoint, put):
    """The follower is further than the server: it would leave the rows in between out for ever."""
    with postgres_server() as server, contextlib.closing(PostgresIndex(server.conninfo)) as index:
        index.open()
        index.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
        server.stop()
        server.keep()
        server.start()
        for tries in itertools.count():
            with contextlib.suppress(IndexBusy):
                index.apply([put(b"b", "x", 2)], make_checkpoint({0: 2}))
                break
            assert tries < 100
        server.stop()
        server.put_back()
        server.start()
        with pytest.raises(IndexBusy, match="was lost"):
            index.apply([put(b"c", "x", 3)], make_checkpoint({0: 3}))
        with pytest.raises(RuntimeError, match="has lost commits: it has 1 of this index, and had answered 2"):
            index.apply([put(b"c", "x", 3)], make_checkpoint({0: 3}))
        assert index.open().positions.seqs() == {0: 1}


@pytest.mark.parametrize(
    ("options", "says"),
    [({"table": "tailrace_x"}, "reserved"), ({"columns": {"a": ("$.a", "date")}}, "has to have one of")],
)
def test_wrong_options(options, says):
    with pytest.raises(ValueError, match=says):
        PostgresIndex("", **options)


def test_wrong_tables(opened, database, make_checkpoint):
    with pytest.raises(ValueError, match="no schema 'missing'"):
        opened(schema="missing")
    database.execute("CREATE TABLE others (a integer)")
    with pytest.raises(ValueError, match="no index of Tailrace made it"):
        opened(table="others")
    opened()
    with pytest.raises(ValueError, match="was made with columns"):
        opened(columns={"a": "$.a"})
    index = opened()
    index.apply([], make_checkpoint({3: 1}))
    database.execute("UPDATE tailrace_checkpoint_items SET position = 'x'")
    with pytest.raises(BadPosition, match=r"checkpoint of partition 3 .* drop its tables"):
        index.open()


def test_a_seq_that_the_column_has_no_room_for(opened, database, make_checkpoint, put):
    index = opened()
    with pytest.raises(ValueError, match="more than 63 bits"):
        index.apply([put(b"b", "x", 1), put(b"a", "x", 2**63)], make_checkpoint({0: 1}))
    assert database.execute("SELECT * FROM items").fetchall() == []


def test_a_server_that_is_not_there():
    with pytest.raises(psycopg.OperationalError):
        PostgresIndex("host=/nowhere dbname=x").open()
