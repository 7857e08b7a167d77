"""What is particular to the index in a directory of Parquet files."""

import contextlib
import json
import random

import pyarrow.parquet
import pytest

from tailrace.consuming.ring import RingChange
from tailrace.errors import BadPosition
from tailrace.indexes import AppliedMutation, ParquetIndex, parquet_files
from tailrace.indexes.audited import audited
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.parquet import MERGED_PARTS
from tailrace.indexes.parquet_state import FOLDER, RING_FILES_MAX
from tailrace.testing.index_calls import chunk, ring_of

pytestmark = pytest.mark.slow  # pyarrow has threads

COLUMNS = {"city": "$.city", "age": ("$.age", "integer"), "size": ("$.size", "real"), "document": ("$", "json")}
NEWEST = "SELECT * FROM (FROM '{}/*.parquet' QUALIFY row_number() OVER (PARTITION BY key ORDER BY batch DESC) = 1)"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "items"


@pytest.fixture
def opened(path):
    """A function that makes and opens an index, closed when the test ends."""
    with contextlib.ExitStack() as stack:

        def make(**options):
            index = stack.enter_context(contextlib.closing(ParquetIndex(path, **options)))
            index.open()
            return index

        yield make


def names(path):
    return sorted(file.name for file in path.glob("*.parquet"))


def by_duckdb(path, columns="key, seq"):
    """The current rows as another program reads them."""
    import duckdb

    with duckdb.connect() as connection:
        sql = f"SELECT {columns} FROM ({NEWEST.format(path)}) WHERE NOT deleted ORDER BY key"
        return connection.execute(sql).fetchall()


def by_polars(path):
    """The current rows by the query that the guide has for Polars."""
    import polars as pl

    newest = pl.scan_parquet(path / "*.parquet").sort("batch").unique("key", keep="last")
    return newest.filter(~pl.col("deleted")).sort("key").select("key", "seq").collect().rows()


def test_columns_have_types(opened, path, make_checkpoint):
    index = opened(columns=COLUMNS)
    value = b'{"city":"Ulm","age":7,"size":1}'
    index.apply([AppliedMutation(3, b"a", value, 1, 5), AppliedMutation(3, b"b", b"x", 2, 6)], make_checkpoint({3: 2}))
    columns = "key, value, partition, seq, epoch_us(timestamp), city, age, size, document"
    assert by_duckdb(path, columns) == [
        (b"a", value, 3, 1, 5, "Ulm", 7, 1.0, value.decode()),
        (b"b", b"x", 3, 2, 6, None, None, None, None),
    ]


def test_other_programs_read_it_while_it_is_followed(opened, path, make_checkpoint, put):
    index = opened()
    held = {}
    for seq in range(1, 60):
        key = b"k%d" % (seq % 7)
        row = put(key, None if seq % 5 == 0 else "x", seq)
        index.apply([row], make_checkpoint({0: seq}))
        held[key] = row
        assert by_duckdb(path) == sorted((row.key, row.seq) for row in held.values() if row.value is not None)
    assert by_polars(path) == by_duckdb(path)


def test_files_of_one_size_are_merged(opened, path, make_checkpoint, put):
    index = opened(keep_replaced_s=0.0)
    for seq in range(1, MERGED_PARTS**2 + 3):
        index.apply([put(b"k%d" % seq, "x", seq)], make_checkpoint({0: seq}))
        assert len(names(path)) < 2 * MERGED_PARTS
    assert len(by_duckdb(path)) == MERGED_PARTS**2 + 2
    index.apply([put(b"k1", None, 99)], make_checkpoint({0: 99}))
    index.compact()
    assert len(names(path)) == 1
    table = pyarrow.parquet.read_table(path)
    assert table.num_rows == MERGED_PARTS**2 + 1
    index.compact()
    assert index.open() == make_checkpoint({0: 99})


def test_replaced_files_stay_for_readers_that_know_them(opened, path, make_checkpoint, put):
    index = opened(keep_replaced_s=1_000.0)
    for seq in range(1, MERGED_PARTS + 1):
        index.apply([put(b"a", str(seq), seq)], make_checkpoint({0: seq}))
    assert len(names(path)) == MERGED_PARTS + 1
    assert by_duckdb(path) == [(b"a", MERGED_PARTS)]
    index.open()
    assert len(names(path)) == MERGED_PARTS + 1
    index.clear(0)
    assert by_duckdb_is_empty(path)


def by_duckdb_is_empty(path):
    return names(path) == []


@pytest.mark.parametrize("seed", range(3))
def test_ranges_of_keys_are_merged_as_a_whole(opened, monkeypatch, make_checkpoint, put, seed):
    """With row groups of three rows a merge has many ranges, and a look-up many groups."""
    monkeypatch.setattr(parquet_files, "GROUP_ROWS_MAX", 3)
    rnd = random.Random(seed)
    index, held, high = opened(keep_replaced_s=0.0), {}, 0
    for _ in range(40):
        batch = {}
        for _ in range(rnd.randint(1, 12)):
            seq = rnd.randint(max(1, high - 5), high + 10)
            row = put(b"%02d" % rnd.randrange(40), rnd.choice(["x", "y", None]), seq)
            batch[row.key] = row
        high = max([high, *(row.seq for row in batch.values())])
        index.apply(list(batch.values()), make_checkpoint({0: high}))
        for row in batch.values():
            if row.key not in held or held[row.key].seq <= row.seq:
                held[row.key] = row
        table = index.read(["key", "seq"])
        found = list(zip(table["key"].to_pylist(), table["seq"].to_pylist(), strict=True))
        assert found == sorted((row.key, row.seq) for row in held.values() if row.value is not None)


def test_long_keys_and_large_values(opened, monkeypatch, make_checkpoint):
    monkeypatch.setattr(parquet_files, "GROUP_BYTES_MAX", 100_000)
    index = opened()
    rows = [AppliedMutation(0, b"%03d" % n + b"k" * 4_000, b"v" * 20_000, n, n) for n in range(1, 30)]
    index.apply(rows, make_checkpoint({0: 29}))
    index.apply([rows[7]._replace(seq=3)], make_checkpoint({0: 29}))  # older, and looked up
    index.compact()
    assert index.read(["seq"])["seq"].to_pylist() == list(range(1, 30))


def test_files_of_a_crash_are_removed_or_moved(opened, path, make_checkpoint, put, monkeypatch):
    index = opened()
    index.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
    monkeypatch.setattr(index, "_place", lambda state: None)  # dies between the commit and the move
    index.apply([put(b"a", "y", 2)], make_checkpoint({0: 2}))
    (path / "part-9-9.parquet").write_bytes(b"of a batch that was never committed")
    (path / "_tailrace" / "ring-77").write_bytes(b"")
    (path / "notes.txt").write_text("of somebody else")
    other = opened()
    assert names(path) == ["part-1-1.parquet", "part-2-2.parquet"]
    assert other.read(["seq"])["seq"].to_pylist() == [2]
    assert sorted(file.name for file in path.iterdir() if file.suffix != ".parquet") == ["_tailrace", "notes.txt"]


def test_a_second_follower_ends_the_first(opened, make_checkpoint, put):
    first, second = opened(), opened()
    for call in (
        lambda: first.apply([put(b"a", "x", 1)], make_checkpoint({0: 1})),
        lambda: first.rollback(0, 1),
        lambda: first.clear(0),
        first.compact,
    ):
        with pytest.raises(RuntimeError, match="another follower has opened"):
            call()
    second.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
    assert second.open() == make_checkpoint({0: 1})


def test_many_changes_of_rings_become_one_file(opened, path, make_checkpoint):
    index = opened()
    positions = make_checkpoint({0: 999}).positions
    for seq in range(1, RING_FILES_MAX + 10):
        index.apply([], Checkpoint(positions, {0: RingChange(0, None, (chunk((seq, b"k%d" % seq)),))}))
    assert len(list(path.glob("_tailrace/ring-*"))) < 12
    assert len(ring_of(index.open())[1]) == RING_FILES_MAX + 9


def test_wrong_directories(tmp_path, opened, path, make_checkpoint, put):
    with pytest.raises(FileNotFoundError, match="parent of the directory"):
        ParquetIndex(tmp_path / "no" / "items").open()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match="no index made them"):
        ParquetIndex(tmp_path / "other").open()
    with pytest.raises(ValueError, match="is taken"):
        ParquetIndex(path, columns={"batch": "$.b"})
    index = opened()
    index.apply([put(b"a", "x", 1)], make_checkpoint({0: 1}))
    with pytest.raises(ValueError, match="was made with columns"):
        opened(columns=COLUMNS)
    (path / "part-1-1.parquet").rename(tmp_path / "away")
    with pytest.raises(BadPosition, match=r"part-1-1\.parquet is missing.*delete the directory"):
        index.open()
    (path / "_tailrace" / "STATE.json").write_bytes(b"{}")
    with pytest.raises(BadPosition, match="delete the directory"):
        index.open()
    state = {"settings": {"format": "2"}, "openings": 1, "batch": 0, "positions": "", "parts": [], "replaced": []}
    state |= {"high_seqs": [], "undone": [], "rings": [], "key_prefix": ""}
    (path / "_tailrace" / "STATE.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match=r"format = 2; tailrace .* knows formats up to 1"):
        index.open()


def test_a_seq_that_the_column_has_no_room_for(opened, make_checkpoint, put):
    index = opened()
    with pytest.raises(ValueError, match="more than 63 bits"):
        index.apply([put(b"b", "x", 1), put(b"a", "x", 2**63)], make_checkpoint({0: 1}))
    assert index.read().num_rows == 0


def test_an_audit_beside_a_follower(path, opened, make_checkpoint, put, monkeypatch):
    """The follower replaces the files that the audit is about to open; or a crash has kept it from moving one."""
    index = opened()
    for seq in range(1, 4):
        index.apply([put(b"%d" % seq, "x", seq)], make_checkpoint({0: seq}))
    newest, compacts = parquet_files.ParquetFiles.newest, [index.compact]

    def late(self, paths, columns=None):
        if compacts:
            compacts.pop()()
        return newest(self, paths, columns)

    monkeypatch.setattr(parquet_files.ParquetFiles, "newest", late)
    with audited(str(path)) as found:
        assert [key for key, _ in found.rows(0)] == [b"1", b"2", b"3"]
    [part] = path.glob("*.parquet")
    part.rename(path / FOLDER / part.name)
    with audited(str(path)) as found:
        assert [key for key, _ in found.rows(0)] == [b"1", b"2", b"3"]
    (path / FOLDER / part.name).unlink()
    monkeypatch.setattr("tailrace.indexes.audited.PARQUET_PAUSE_S", 0)
    with pytest.raises(BadPosition, match="is missing"), audited(str(path)):
        pass
