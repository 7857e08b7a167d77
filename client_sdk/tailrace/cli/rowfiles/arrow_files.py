"""Reads Parquet and Arrow files, a few thousand rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from tailrace.cli.errors import CommandFailed
from tailrace.cli.rowfiles.formats import Format
from tailrace.cli.rowfiles.records import BadRecord, Record

if TYPE_CHECKING:
    from types import ModuleType

# Rows of a Parquet file that are decoded together.
ROWS_TOGETHER = 4_096


def require_pyarrow(format: Format) -> ModuleType:
    """Imports pyarrow. Raises CommandFailed if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise CommandFailed(f"{format} needs pyarrow: pip install 'tailrace[cli,arrow]'") from None
    return pyarrow  # type: ignore[no-any-return]


def arrow_records(
    file: BinaryIO, format: Format, columns: Callable[[list[str]], list[str]], read: Callable[[int, int], None]
) -> Iterator[Record]:
    """Yields the rows of a Parquet or Arrow file.

    Args:
        file: The file; a Parquet file has to be seekable.
        format: PARQUET or ARROW.
        columns: Returns those of the file's columns that are needed; the others are not decoded.
        read: Is told how many rows were read, and how many there are.

    Raises:
        CommandFailed: pyarrow is missing.
        BadRecord: The file is damaged or of another format.
    """
    pyarrow = require_pyarrow(format)
    number = 0
    try:
        for batch, total in _batches(file, format, columns):
            for fields in batch.to_pylist():
                number += 1
                yield Record(f"row {number}", fields)
            if total:
                read(number, total)
    except (pyarrow.ArrowException, OSError) as error:
        line = " ".join(str(error).split())
        place = f"after row {number:,}" if number else ""
        raise BadRecord(place, f"this is no {format} file, or it is damaged: {line}") from None


def _batches(file: BinaryIO, format: Format, columns: Callable[[list[str]], list[str]]) -> Iterator[tuple[Any, int]]:
    """Yields record batches of the needed columns, and the number of all rows (0: not known)."""
    if format is Format.PARQUET:
        from pyarrow import parquet

        whole = parquet.ParquetFile(file)
        needed = columns(whole.schema_arrow.names)
        for batch in whole.iter_batches(ROWS_TOGETHER, columns=needed):
            yield batch, whole.metadata.num_rows
        return
    for batch in _arrow_batches(file):
        needed = columns(batch.schema.names)
        for offset in range(0, batch.num_rows, ROWS_TOGETHER):
            yield batch.select(needed).slice(offset, ROWS_TOGETHER), 0


def _arrow_batches(file: BinaryIO) -> Iterator[Any]:
    """Yields the record batches of an Arrow file, or of an Arrow stream."""
    from pyarrow import ipc

    if not file.seekable():
        yield from ipc.open_stream(file)
        return
    magic = file.read(6)
    file.seek(0)
    if magic == b"ARROW1":
        whole = ipc.open_file(file)
        yield from map(whole.get_batch, range(whole.num_record_batches))
    else:
        yield from ipc.open_stream(file)
