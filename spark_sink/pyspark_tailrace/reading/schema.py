"""The columns of a feed in Spark, and mutations as Arrow batches of the columns that a job requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_tailrace.versions import arrow_schema
from tailrace.block.to_arrow import batch_schema
from tailrace.consuming.events import Mutations

COLUMNS = {
    "partition": "int",
    "seq": "bigint",
    "key": "binary",
    "value": "binary",
    "deleted": "boolean",
    "timestamp": "timestamp",
}
# Columns that a job gets only if its schema names them: a default schema that grows would stop jobs that write it on.
FURTHER = {"expired": "boolean"}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

# Smaller batches are joined up to these bounds: each batch costs Spark some 100 us, whatever its size.
BATCH_ROWS = 4096
BATCH_BYTES = 256 * 1024


def check_schema(schema: StructType, *, is_case_sensitive: bool = False) -> None:
    """Raises ValueError if a job's schema has a column or a type that a feed does not have."""
    for column in schema.fields:
        kind = column.dataType.simpleString()
        name = column.name if is_case_sensitive else column.name.lower()
        if COLUMNS.get(name) != kind and FURTHER.get(name) != kind:
            raise ValueError(
                f"the schema asks for {column.name} {kind}; the columns of a feed are {SCHEMA}, and expired boolean, "
                "which only .schema() gives. Leave .schema() out, "
                "or name some of these; pyspark_tailrace.decode(df, schema) makes columns of a value in JSON"
            )
    if not schema.fields:
        raise ValueError(f"the schema has no columns: leave it out, or name some of {SCHEMA}")


def has_column(schema: StructType, name: str) -> bool:
    """Returns whether a job's schema, checked by ``check_schema``, has the column ``name`` of a feed."""
    return name in (column.lower() for column in schema.names)


class Shape:
    """Makes Arrow batches of a job's schema. Made in each task, because pyarrow's schemas are not pickled."""

    def __init__(self, schema: StructType) -> None:
        self._schema = arrow_schema(schema)
        given = batch_schema()
        self._names = tuple(name.lower() for name in self._schema.names)
        self._numbers = [given.get_field_index(name) for name in self._names]

    def of_event(self, event: Mutations) -> Any:
        """Returns the schema's columns of mutations. Others are not made."""
        return pa.RecordBatch.from_arrays(event.to_arrow(self._names).columns, schema=self._schema)

    def of(self, batch: Any) -> Any:
        """Returns the schema's columns of a batch of mutations (``Mutations.to_arrow``)."""
        columns = [batch.column(number) for number in self._numbers]  # by name it takes several times as long
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def joined(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the rows of ``batches``, with small batches joined."""
        waiting: list[Any] = []
        rows = size = 0
        for batch in batches:
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes if rows < BATCH_ROWS else 0  # Arrow takes long to find the bytes
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from _together(waiting)
                waiting, rows, size = [], 0, 0
        if waiting:
            yield from _together(waiting)


def _together(batches: list[Any]) -> list[Any]:
    if len(batches) == 1:
        return batches
    return pa.Table.from_batches(batches).combine_chunks().to_batches()  # type: ignore[no-any-return]
