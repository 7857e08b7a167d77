"""Makes blocks of Arrow data: finds the columns, checks whole columns, and routes the rows. Pure.

    data ──> record batches ──check──> pieces of 16 MiB ──> Router ──> blocks

Data that is in memory as a whole is checked before its first row is added. Data that comes batch by batch, such as that
of a reader, is checked batch by batch.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.block import Block
from tailrace.block.arrow_strings import is_strings, nulls_of, to_binary
from tailrace.block.header import TTL_S_MAX
from tailrace.block.routing import PIECE_BYTES, Router, row_bytes
from tailrace.block.spans import spans
from tailrace.requests.changes import checked_ttl

# The rows of a table are checked and routed so many at a time, and fewer if they are large.
BATCH_ROWS = 65_536


class ArrowRows:
    """The rows of Arrow data, for one call.

    Args:
        data: As for `tailrace.Writer.write_arrow`. What has a length is taken as a whole, and checked first.
        key: The name of the column of keys.
        value: The name of the column of values.
        deleted: The name of the column that tells which rows are deletions, if there are any.
        ttl: The name of the column of ttls, or the ttl of all rows in seconds; None: no row has one.

    Raises:
        TypeError: ``data`` or ``ttl`` is something else.
        ValueError: ``ttl`` is a number out of its bounds.
        ImportError: pyarrow is not installed.
    """

    def __init__(self, data: Any, key: str, value: str, deleted: str | None, ttl: int | str | None = None) -> None:
        self._names = {"key": key, "value": value} | ({} if deleted is None else {"deleted": deleted})
        self._ttl = ttl if ttl is None or isinstance(ttl, str) else checked_ttl(ttl)
        if isinstance(ttl, str):
            self._names["ttl"] = ttl
        self._is_whole = isinstance(data, Sized)
        tables = _tables(data)
        self._tables: Iterable[Any] = list(tables) if self._is_whole else tables

    def blocks(self, partitions: int) -> Iterator[Block]:
        """Yields the blocks of all rows, for a feed of so many partitions.

        If a batch is bad, the blocks of the rows before it are yielded first, and a note of the error counts these
        rows.

        Raises:
            TypeError: A column is of another type.
            ValueError: A column is missing or occurs twice, a key is null or empty, or a value is null.
            TooLarge: A key or a value is too long.
            Exception: An iterable of batches has raised it.
        """
        router, row = Router(partitions), 0
        try:
            if self._is_whole:
                self._check_all()
            for batch in self._batches():
                yield from self._route(batch, row, router)
                row += batch.num_rows
        except Exception as error:
            for routed in router.flush():
                yield routed.block
            error.add_note(f"the {row} rows before these were added" if row else "nothing was added")
            raise
        for routed in router.flush():
            yield routed.block

    def _check_all(self) -> None:
        row = 0
        for batch in self._batches():
            self._check(batch, row)
            self._ttls(batch, row)
            row += batch.num_rows

    def _batches(self) -> Iterator[Any]:
        """Yields record batches with the columns "key", "value" and, if they are named, "deleted" and "ttl"."""
        for table in self._tables:
            picked = [_column(table.schema, name, use) for use, name in self._names.items()]
            for batch in table.select(picked).to_batches(BATCH_ROWS):
                yield batch.rename_columns(list(self._names))

    def _route(self, batch: Any, row: int, router: Router) -> Iterator[Block]:
        sizes, deleted = self._check(batch, row)
        keys, values, ttls = batch["key"], batch["value"], self._ttls(batch, row)
        for start, stop in spans(np.cumsum(sizes), PIECE_BYTES, BATCH_ROWS):
            part = slice(start, stop)
            strings = to_binary(values[part])
            if deleted is not None:
                strings = pc.if_else(pa.array(deleted[part]), pa.scalar(None, pa.binary()), strings)
            for routed in router.add(to_binary(keys[part]), strings, ttls=None if ttls is None else ttls[part]):
                yield routed.block

    def _check(self, batch: Any, row: int) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Returns the bytes of each row, and True for each deletion (None: no row is one)."""
        deleted = _deletions(batch["deleted"]) if "deleted" in self._names else None
        sizes = row_bytes(batch["key"], batch["value"], row, deleted)
        nulls = nulls_of(batch["value"])
        if nulls is not None and deleted is not None:
            nulls = nulls & ~deleted
        if nulls is not None and nulls.any():
            marks = self._names.get("deleted")
            advice = f"mark deletions in {marks!r}" if marks else "name a column that marks deletions by deleted="
            raise ValueError(
                f"row {row + int(nulls.argmax())} (counted from 0): {np.count_nonzero(nulls)} of {len(nulls)} rows "
                f"have a null value: {advice}, or fill the nulls, or filter them out"
            )
        return sizes, deleted

    def _ttls(self, batch: Any, row: int) -> NDArray[np.uint32] | None:
        """Returns the seconds of each row, 0 for none; None if no row has a ttl. Raises ValueError."""
        if self._ttl is None:
            return None
        if not isinstance(self._ttl, str):
            return np.full(batch.num_rows, self._ttl, "<u4")
        column = batch["ttl"]
        wrong = pc.fill_null(pc.or_(pc.less(column, 1), pc.greater(column, TTL_S_MAX)), False)
        if pc.any(wrong).as_py():
            first = wrong.index(True).as_py()
            raise ValueError(
                f"row {row + first} (counted from 0): the ttl is {column[first].as_py()}, and has to be a number of "
                f"seconds from 1 to {TTL_S_MAX}, or null for none"
            )
        seconds: NDArray[np.uint32] = pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype("<u4")
        return seconds


def _column(schema: Any, name: str, use: str) -> int:
    """Returns the number of a column. Raises ValueError, TypeError."""
    found = schema.get_all_field_indices(name)
    if len(found) != 1:
        what = f"there are {len(found)} columns {name!r}" if found else f"there is no column {name!r}"
        raise ValueError(f"{what}: the columns are {', '.join(schema.names) or 'none'}; name the right one by {use}=")
    [number] = found
    kind = schema.field(number).type
    if use == "deleted" and not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise TypeError(f"column {name!r} is of Arrow type {kind}, and has to be bool: cast it")
    if use == "ttl" and not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise TypeError(f"column {name!r} is of Arrow type {kind}, and has to be of whole numbers, seconds: cast it")
    if use not in ("deleted", "ttl") and not is_strings(kind):
        raise TypeError(f"column {name!r} is of Arrow type {kind}, and has to be binary or string: cast it")
    return int(number)


def _deletions(column: Any) -> NDArray[np.bool_] | None:
    """Returns True for each row that is a deletion; None if none is. A null counts as False."""
    if pa.types.is_null(column.type):
        return None
    found: NDArray[np.bool_] = column.fill_null(False).to_numpy(zero_copy_only=False)
    return found if found.any() else None


def _tables(data: Any) -> Iterable[Any]:
    """Returns tables, or an iterator of them. Raises TypeError."""
    table = _as_table(data)
    if table is not None:
        return [table]
    if isinstance(data, pa.RecordBatchReader):
        return map(_table, data)
    if hasattr(data, "__arrow_c_stream__"):
        return map(_table, pa.RecordBatchReader.from_stream(data))
    if isinstance(data, AsyncIterable):
        raise TypeError(f"data is an async iterable ({type(data).__name__}): write each batch by a call of its own")
    if isinstance(data, Mapping | str | bytes) or not isinstance(data, Iterable):
        raise TypeError(f"data is {_kind(data)}, and {_WANTED}, or an iterable of these")
    return (_of_iterable(part, number) for number, part in enumerate(data))


_WANTED = (
    "has to be a pyarrow.Table, a RecordBatch, a RecordBatchReader, or a data frame; pyarrow.table() makes a table of "
    "a dict of columns, and pyarrow.Table.from_pylist() of a list of dicts"
)


def _kind(data: Any) -> str:
    return f"of type {type(data).__module__}.{type(data).__qualname__}"


def _of_iterable(part: Any, number: int) -> Any:
    table = _as_table(part)
    if table is None:
        raise TypeError(f"batch {number} (counted from 0) is {_kind(part)}, and {_WANTED}")
    return table


def _table(batch: Any) -> Any:
    return pa.Table.from_batches([batch])


def _as_table(data: Any) -> Any | None:
    """Returns data that is in memory as a table, without a copy if possible; None if it is something else."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return _table(data)
    if hasattr(data, "__arrow_c_array__") and not isinstance(data, pa.Array):
        return _table(pa.record_batch(data))
    if hasattr(data, "__arrow_c_stream__") and isinstance(data, Sized) and not isinstance(data, pa.ChunkedArray):
        return pa.table(data)
    return None
