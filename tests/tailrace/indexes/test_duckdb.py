"""What is particular to the index in a DuckDB file."""

import contextlib
import subprocess
import sys

import pytest

from tailrace.errors import BadPosition
from tailrace.indexes import AppliedMutation, DuckDBIndex, IndexBusy

pytestmark = pytest.mark.slow  # DuckDB has threads

COLUMNS = {
    "city": "$.address.city",
    "age": ("$.age", "integer"),
    "size": ("$.size", "real"),
    "is_new": ("$.new", "boolean"),
    "document": ("$", "json"),
}


@pytest.fixture
def opened(tmp_path):
    """A function that makes and opens an index, closed when the test ends."""
    with contextlib.ExitStack() as stack:

        def make(**options):
            index = stack.enter_context(contextlib.closing(DuckDBIndex(tmp_path / "index.duckdb", **options)))
            index.open()
            return index

        yield make


def query(index, sql):
    return index.cursor().execute(sql).fetchall()


def mutation(key, value, seq):
    return AppliedMutation(0, key, value, seq, seq)


def test_columns_have_types(opened, make_checkpoint):
    index = opened(columns=COLUMNS)
    value = b'{"address": {"city": "Ulm"}, "age": 7, "size": 1, "new": true}'
    rows = [mutation(b"a", value, 1), mutation(b"b", b"no json \xff", 2), mutation(b"c", b'{"age": "x"}', 3)]
    index.apply(rows, make_checkpoint({0: 3}))
    columns = "city, age, size, is_new, document"
    assert query(index, f"SELECT {columns} FROM items ORDER BY key") == [
        ("Ulm", 7, 1.0, True, value.decode().replace(" ", "")),
        (None, None, None, None, None),
        (None, None, None, None, '{"age":"x"}'),
    ]


def test_a_file_has_several_indexes(opened, make_checkpoint, put):
    one = opened(table="one")
    two = opened(table="two")
    one.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
    two.apply([put(b"b", "x", 2)], make_checkpoint({0: 2}, feed=b"g" * 16))
    assert query(two, "SELECT one.key, two.key FROM one, two") == [(b"a", b"b")]
    assert one.open() == make_checkpoint({0: 1})


def test_a_second_follower_of_this_process_ends_the_first(opened, make_checkpoint):
    first, second = opened(), opened()
    with pytest.raises(RuntimeError, match="another follower has opened"):
        first.apply([], make_checkpoint({0: 1}))
    second.apply([], make_checkpoint({0: 1}))


def test_another_process_has_the_file(opened, tmp_path):
    code = (
        f"import duckdb; c = duckdb.connect({str(tmp_path / 'index.duckdb')!r}); print('has it', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "has it\n"
        with pytest.raises(IndexBusy, match="another process has the index"):
            opened()
        other.communicate("\n")
    opened()


@pytest.mark.parametrize("statement", ["UPDATE items SET seq = 5", "ALTER TABLE items ADD COLUMN more INTEGER"])
def test_a_transaction_of_this_process_is_in_the_way(opened, make_checkpoint, put, statement):
    index = opened()
    index.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
    other = index.cursor()
    other.execute("BEGIN")
    other.execute(statement)
    with pytest.raises(IndexBusy, match="a transaction of this process"):
        index.apply([put(b"a", "y", 2)], make_checkpoint({0: 2}))
    other.execute("ROLLBACK")
    index.apply([put(b"a", "y", 2)], make_checkpoint({0: 2}))


FULL_DISK = """
import os, resource, sys
from tailrace.indexes import AppliedMutation, DuckDBIndex
from tailrace.model.position import Positions
from tailrace.indexes.checkpoint import Checkpoint
index = DuckDBIndex(sys.argv[1])
index.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))  # a write beyond fails, as on a full disk
try:
    index.apply([AppliedMutation(0, b"%d" % n, os.urandom(4000), n, n) for n in range(1, 1000)],
                Checkpoint(Positions(bytes(16), bytes(16), {})))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_full_disk_is_no_transaction_that_is_in_the_way(tmp_path, opened):
    """The follower waits for other transactions for ever."""
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "index.duckdb")], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.startswith("TransactionException TransactionContext Error: Failed to commit: Could not write"), (
        ran
    )
    assert query(opened(), "SELECT * FROM items") == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "tailrace_x"}, "reserved"),
        ({"table": "x" * 41}, "40 are possible"),
        ({"columns": {"a": ("$.a", "date")}}, "has to have one of"),
        ({"columns": {"Value": "$.a"}}, "is taken"),
        ({"columns": {"a": "a"}}, "no JSON path"),
    ],
)
def test_wrong_options(tmp_path, options, says):
    with pytest.raises(ValueError, match=says):
        DuckDBIndex(tmp_path / "index.duckdb", **options)


def test_wrong_files(tmp_path, opened, make_checkpoint):
    with pytest.raises(FileNotFoundError, match="directory of the index"):
        DuckDBIndex(tmp_path / "no" / "index.duckdb").open()
    (tmp_path / "text").write_bytes(b"a text" * 5_000)
    with pytest.raises(ValueError, match="not a DuckDB file"):
        DuckDBIndex(tmp_path / "text").open()
    index = opened()
    index._connected().execute("CREATE TABLE others (a INTEGER)")
    with pytest.raises(ValueError, match="no index of Tailrace made it"):
        opened(table="others")
    with pytest.raises(ValueError, match="was made with columns"):
        opened(columns={"a": "$.a"})
    index = opened()
    index.apply([], make_checkpoint({3: 1}))
    index._connected().execute("UPDATE tailrace_checkpoint_items SET position = 'x'")
    with pytest.raises(BadPosition, match=r"checkpoint of partition 3 .* delete the file"):
        index.open()


def test_a_seq_that_the_column_has_no_room_for(opened, make_checkpoint, put):
    index = opened()
    with pytest.raises(ValueError, match="more than 63 bits"):
        index.apply([put(b"b", "x", 1), put(b"a", "x", 2**63)], make_checkpoint({0: 1}))
    assert query(index, "SELECT * FROM items") == []
