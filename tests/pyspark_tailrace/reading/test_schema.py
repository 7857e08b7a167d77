from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from tests.pyspark_tailrace.reading.conftest import schema_of

from pyspark_tailrace.reading.schema import BATCH_ROWS, COLUMNS, Shape, check_schema, has_column
from tailrace import Mutations
from tailrace.block import encode_block


def mutations(rows):
    keys = [b"%d" % row for row in range(rows)]
    return Mutations(encode_block(keys, [b"v"] * rows, partition=0).stamped(1, 5))


@pytest.mark.parametrize("columns", [COLUMNS, ["value", "key"], ["timestamp"], ["key", "expired"]])
def test_wanted_columns(columns):
    schema = schema_of(columns)
    check_schema(schema)
    batch = Shape(schema).of(mutations(3).to_arrow())
    assert batch.schema.names == list(columns)
    assert batch.num_rows == 3
    assert Shape(schema).of_event(mutations(3)) == batch


def test_names_of_columns_in_any_case():
    schema = StructType([StructField("KEY", BinaryType()), StructField("Seq", LongType())])
    check_schema(schema)
    assert Shape(schema).of(mutations(2).to_arrow()).to_pydict() == {"KEY": [b"0", b"1"], "Seq": [1, 2]}
    assert Shape(schema).of_event(mutations(2)) == Shape(schema).of(mutations(2).to_arrow())
    assert not has_column(schema, "value")
    assert has_column(StructType([StructField("Value", BinaryType())]), "value")


@given(st.lists(st.integers(1, 3 * BATCH_ROWS), max_size=20))
def test_small_batches_are_put_together_and_stay_in_order(sizes):
    batches, next_row = [], 0
    for size in sizes:
        batches.append(pa.RecordBatch.from_pydict({"row": list(range(next_row, next_row + size))}))
        next_row += size
    found = list(Shape(StructType()).joined(batches))
    assert [row for batch in found for row in batch.column("row").to_pylist()] == list(range(next_row))
    assert all(batch.num_rows >= BATCH_ROWS for batch in found[:-1])


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (StructField("city", StringType()), "asks for city string; .*decode"),
        (StructField("key", StringType()), "asks for key string"),
        (StructField("partition", LongType()), "asks for partition bigint; the columns of a feed are partition int"),
    ],
)
def test_what_a_feed_has_not_got(column, text):
    with pytest.raises(ValueError, match=text):
        check_schema(StructType([column]))


def test_no_columns():
    with pytest.raises(ValueError, match="no columns"):
        check_schema(StructType([]))
