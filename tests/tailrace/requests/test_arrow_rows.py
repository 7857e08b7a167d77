from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import pandas
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import KEY_BYTES_MAX, VALUE_BYTES_MAX
from tailrace.errors import TooLarge
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests import arrow_rows
from tailrace.requests.arrow_rows import ArrowRows

ROWS = st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.none() | st.binary(max_size=30)), max_size=30)


def table_of(rows, kind=None):
    kind = kind or pa.binary()
    return pa.table(
        {
            "value": pa.array([value for _, value in rows], kind),
            "key": pa.array([key for key, _ in rows], kind),
            "gone": pa.array([value is None for _, value in rows], pa.bool_()),
            "more": pa.array(range(len(rows)), pa.int64()),
        }
    )


def rows_of(blocks):
    """The rows of each partition, in the order of their blocks."""
    found = defaultdict(list)
    for block in blocks:
        columns = block.columns()
        found[block.header.partition] += zip(columns.keys(), columns.values(), strict=True)
    return dict(found)


def routed(rows, partitions):
    found = defaultdict(list)
    for key, value in rows:
        found[partition_of_hash(key_hash(key), partitions)].append((key, value))
    return dict(found)


@given(ROWS, st.sampled_from([1, 3, 16]), st.integers(1, 40), st.integers(1, 200))
def test_rows_come_to_their_partition_in_order(rows, partitions, batch_rows, piece_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_rows, "BATCH_ROWS", batch_rows)
        patch.setattr(arrow_rows, "PIECE_BYTES", piece_bytes)
        found = rows_of(ArrowRows(table_of(rows), "key", "value", "gone").blocks(partitions))
    assert found == routed(rows, partitions)


ROW_LIST = [(b"a", b"1"), (b"b", b""), (b"c", b"33")]


class Frame:
    """An object that hands over a table by Arrow's C interface; it has a length if ``rows`` is given."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class SizedFrame(Frame):
    def __len__(self):
        return 3


class Batch:
    def __arrow_c_array__(self, requested_schema=None):
        return table_of(ROW_LIST).to_batches()[0].__arrow_c_array__(requested_schema)


def forms():
    table = table_of(ROW_LIST)
    [batch] = table.to_batches()
    yield "table", table
    yield "chunked", pa.concat_tables([table.slice(0, 1), table.slice(1)])
    yield "sliced", pa.concat_tables([table, table]).slice(3)
    yield "batch", batch
    yield "list", [batch.slice(0, 2), table.slice(2)]
    yield "iterator", iter([batch.slice(0, 2), batch.slice(2)])
    yield "reader", pa.RecordBatchReader.from_batches(batch.schema, [batch])
    yield "stream", Frame(table)
    yield "frame", SizedFrame(table)
    yield "array", Batch()
    yield "pandas", pandas.DataFrame({"key": [k for k, _ in ROW_LIST], "value": [v for _, v in ROW_LIST]})
    yield "pandas with text", pandas.DataFrame({"key": ["a", "b", "c"], "value": ["1", "", "33"]}).set_index("key")


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in forms()])
def test_forms_of_data(data):
    assert rows_of(ArrowRows(data, "key", "value", None).blocks(1)) == {0: ROW_LIST}


@pytest.mark.slow  # polars starts threads
def test_a_data_frame_of_polars():
    import polars

    frame = polars.DataFrame({"key": ["a", "b", "c"], "value": [b"1", b"", b"33"]})
    assert rows_of(ArrowRows(frame, "key", "value", None).blocks(1)) == {0: ROW_LIST}


@pytest.mark.parametrize("data", [[], iter([]), table_of([])], ids=["list", "iterator", "table"])
def test_no_rows(data):
    assert list(ArrowRows(data, "key", "value", None).blocks(4)) == []


def test_deletions_have_no_value():
    rows = table_of([(b"a", b"1"), (b"b", b"2"), (b"c", None)]).drop(["gone"])
    table = rows.append_column("gone", pa.array([None, True, True]))
    found = rows_of(ArrowRows(table, "key", "value", "gone").blocks(1))
    assert found == {0: [(b"a", b"1"), (b"b", None), (b"c", None)]}
    table = table_of(ROW_LIST).drop(["gone"]).append_column("gone", pa.nulls(3))
    assert rows_of(ArrowRows(table, "key", "value", "gone").blocks(1)) == {0: ROW_LIST}
    long = pa.table({"key": ["a"], "value": [bytes(VALUE_BYTES_MAX + 1)], "gone": [True]})
    assert rows_of(ArrowRows(long, "key", "value", "gone").blocks(1)) == {0: [(b"a", None)]}


GOOD = {"key": ["a", "b"], "value": ["1", "2"]}


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({"value": ["1"]}, ValueError, "there is no column 'key': the columns are value; name the right one by key="),
        ({"key": ["a"]}, ValueError, "there is no column 'value'.*by value="),
        ({"key": [1], "value": ["1"]}, TypeError, "column 'key' is of Arrow type int64, and has to be binary or str"),
        ({"key": ["a"], "value": [1.5]}, TypeError, "column 'value' is of Arrow type double"),
        (
            {"key": ["a", "b", None], "value": ["1"] * 3},
            ValueError,
            r"row 2 \(counted from 0\): 1 of 3 rows have a null",
        ),
        ({"key": ["a", ""], "value": ["1"] * 2}, ValueError, "row 1 .*1 of 2 rows have an empty key"),
        ({"key": [None, None], "value": ["1"] * 2}, ValueError, "row 0 .*2 of 2 rows have a null key"),
        ({"key": ["a", "b"], "value": ["1", None]}, ValueError, "row 1 .*1 of 2 rows have a null value: name a column"),
        ({"key": ["k" * (KEY_BYTES_MAX + 1)], "value": ["1"]}, TooLarge, "row 0: a key has 4097 bytes"),
        ({"key": ["a", "b"], "value": [b"", bytes(VALUE_BYTES_MAX + 1)]}, TooLarge, "row 1: a value has 16777217"),
    ],
)
def test_bad_columns(columns, error, text):
    """Of a table, no block is made; of batches, those of the batches before."""
    bad = pa.table(columns)
    blocks = ArrowRows(bad, "key", "value", None).blocks(4)
    with pytest.raises(error, match=text) as caught:
        next(blocks)
    assert caught.value.__notes__ == ["nothing was added"]
    good = pa.table(GOOD)
    for data in ([good, bad], iter([good, bad])):
        blocks, made = ArrowRows(data, "key", "value", None).blocks(1), []
        with pytest.raises(error) as caught:
            made.extend(blocks)
        if isinstance(data, list):
            assert made == []
            assert caught.value.__notes__ == ["nothing was added"]
        else:
            assert rows_of(made) == {0: [(b"a", b"1"), (b"b", b"2")]}
            assert caught.value.__notes__ == ["the 2 rows before these were added"]


def test_rows_are_counted_over_all_batches():
    batches = [pa.table(GOOD), pa.table({"key": ["c", None], "value": ["3", "4"]})]
    for data in (batches, iter(batches), pa.concat_tables(batches)):
        with pytest.raises(ValueError, match=r"row 3 .*null key"):
            list(ArrowRows(data, "key", "value", None).blocks(1))


def test_a_null_value_has_to_be_marked():
    table = pa.table({"key": ["a", "b", "c"], "value": ["1", None, None], "gone": [False, True, None]})
    with pytest.raises(ValueError, match=r"row 2 .*1 of 3 rows have a null value: mark deletions in 'gone'"):
        list(ArrowRows(table, "key", "value", "gone").blocks(1))


def test_a_column_that_occurs_twice_or_marks_by_numbers():
    table = pa.Table.from_arrays([pa.array(["a"])] * 3, ["key", "value", "key"])
    with pytest.raises(ValueError, match="there are 2 columns 'key'"):
        list(ArrowRows(table, "key", "value", None).blocks(1))
    table = pa.table({"key": ["a"], "value": ["1"], "gone": [1]})
    with pytest.raises(TypeError, match="'gone' is of Arrow type int64, and has to be bool"):
        list(ArrowRows(table, "key", "value", "gone").blocks(1))


async def rows_with_async():
    yield pa.table(GOOD)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"key": ["a"], "value": ["1"]}, r"data is of type builtins.dict, .*pyarrow.table\(\)"),
        ("rows.arrow", "data is of type builtins.str"),
        (5, "data is of type builtins.int"),
        ([{"key": "a", "value": "1"}], r"batch 0 .* is of type builtins.dict, .*from_pylist\(\)"),
        (pa.array(["a"]), "is of type pyarrow.lib.*Scalar|data is of type pyarrow"),
        (rows_with_async(), "async iterable .*: write each batch by a call of its own"),
    ],
)
def test_other_data(data, text):
    with pytest.raises(TypeError, match=text):
        ArrowRows(data, "key", "value", None)


def test_an_iterable_that_fails():
    def batches():
        yield pa.table(GOOD)
        raise OSError("the file has ended")

    made = []
    with pytest.raises(OSError, match="the file has ended") as caught:
        made.extend(ArrowRows(batches(), "key", "value", None).blocks(1))
    assert caught.value.__notes__ == ["the 2 rows before these were added"]
    assert rows_of(made) == {0: [(b"a", b"1"), (b"b", b"2")]}


@pytest.mark.slow
def test_importing_the_package_loads_no_pyarrow():
    code = "import sys, tailrace, tailrace.asyncio, tailrace.blocking; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def ttls_of(blocks):
    found = {}
    for block in blocks:
        columns = block.columns()
        found.update(zip(columns.keys(), columns.ttls(), strict=True))
    return found


@given(st.lists(st.tuples(st.booleans(), st.none() | st.integers(1, 10**6)), max_size=40), st.sampled_from([1, 3]))
def test_ttls_come_with_their_rows_and_deletions_have_none(rows, partitions):
    table = pa.table(
        {
            "key": pa.array([b"%d" % number for number in range(len(rows))], pa.binary()),
            "value": pa.array([b"v"] * len(rows), pa.binary()),
            "gone": pa.array([gone for gone, _ in rows], pa.bool_()),
            "seconds": pa.array([ttl for _, ttl in rows], pa.int64()),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_rows, "BATCH_ROWS", 7)
        by_column = ttls_of(ArrowRows(table, "key", "value", "gone", "seconds").blocks(partitions))
        by_number = ttls_of(ArrowRows(table, "key", "value", "gone", 9).blocks(partitions))
    assert by_column == {b"%d" % n: 0 if gone else ttl or 0 for n, (gone, ttl) in enumerate(rows)}
    assert by_number == {b"%d" % n: 0 if gone else 9 for n, (gone, _) in enumerate(rows)}


def test_wrong_ttls_are_refused_before_any_row():
    table = pa.table({"key": [b"a", b"b"], "value": [b"1", b"2"], "ttl": [1, 0], "words": ["x", "y"]})
    with pytest.raises(ValueError, match=r"row 1 \(counted from 0\): the ttl is 0, .* from 1 to 315360000"):
        list(ArrowRows(table, "key", "value", None, "ttl").blocks(1))
    with pytest.raises(TypeError, match="column 'words' is of Arrow type string, and has to be of whole numbers"):
        list(ArrowRows(table, "key", "value", None, "words").blocks(1))
    with pytest.raises(ValueError, match="ttl is 0"):
        ArrowRows(table, "key", "value", None, 0)
    with pytest.raises(ValueError, match="there is no column 'seconds'"):
        list(ArrowRows(table, "key", "value", None, "seconds").blocks(1))
