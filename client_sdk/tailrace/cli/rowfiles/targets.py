"""Writes rows to a file, or to the standard output. `tailrace import` reads what is written here."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

from tailrace.cli.errors import CommandFailed, WrongUsage
from tailrace.cli.output import to_json_line
from tailrace.cli.rowfiles.arrow_files import require_pyarrow
from tailrace.cli.rowfiles.formats import STDIO, Format, is_gzip
from tailrace.model import Mutation
from tailrace.model.json_rows import bytes_field, mutation_to_row

CSV_COLUMNS = ("key", "value", "deleted", "timestamp", "partition", "seq", "key_encoding", "value_encoding", "expired")


class Row(NamedTuple):
    """A mutation, and the partition that it is in."""

    partition: int
    mutation: Mutation


class RowWriter(Protocol):
    """Writes rows in one format."""

    def write(self, rows: Sequence[Row]) -> None:
        """Writes rows. Raises OSError."""
        ...

    def close(self) -> None:
        """Writes what ends the file, and leaves it open. Raises OSError."""
        ...


class JsonLines:
    """An object on each line."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, rows: Sequence[Row]) -> None:
        lines = (to_json_line({**mutation_to_row(row.mutation), "partition": row.partition}) for row in rows)
        self._file.write("".join(lines).encode())

    def close(self) -> None:
        pass


class Csv:
    """A line of names, then the rows. Bytes that are not UTF-8 are base64, as the columns of encodings say."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._write([dict(zip(CSV_COLUMNS, CSV_COLUMNS, strict=True))])

    def write(self, rows: Sequence[Row]) -> None:
        self._write([_csv_fields(row) for row in rows])

    def _write(self, rows: list[dict[str, Any]]) -> None:
        text = io.StringIO(newline="")
        csv.DictWriter(text, CSV_COLUMNS, restval="").writerows(rows)
        self._file.write(text.getvalue().encode())

    def close(self) -> None:
        pass


def _csv_fields(row: Row) -> dict[str, Any]:
    key, value, seq, timestamp, deleted, expired = row.mutation
    fields: dict[str, Any] = {
        "deleted": "true" if deleted else "false",
        "timestamp": timestamp,
        "partition": row.partition,
        "seq": seq,
        "expired": "true" if expired else "false",
    }
    return fields | bytes_field("key", key) | (bytes_field("value", value) if value is not None else {})


class ArrowRows:
    """A Parquet file, or an Arrow stream."""

    def __init__(self, file: BinaryIO, format: Format) -> None:
        pyarrow = require_pyarrow(format)
        self._pyarrow = pyarrow
        self._schema = pyarrow.schema(
            [
                ("partition", pyarrow.int32()),
                ("seq", pyarrow.int64()),
                ("key", pyarrow.binary()),
                ("value", pyarrow.binary()),
                ("deleted", pyarrow.bool_()),
                ("timestamp", pyarrow.timestamp("us", tz="UTC")),
                ("expired", pyarrow.bool_()),
            ]
        )
        if format is Format.PARQUET:
            from pyarrow import parquet

            self._writer: Any = parquet.ParquetWriter(file, self._schema)
        else:
            from pyarrow import ipc

            self._writer = ipc.new_stream(file, self._schema)

    def write(self, rows: Sequence[Row]) -> None:
        mutations = [row.mutation for row in rows]
        columns = [
            [row.partition for row in rows],
            [mutation.seq for mutation in mutations],
            [mutation.key for mutation in mutations],
            [mutation.value for mutation in mutations],
            [mutation.deleted for mutation in mutations],
            [mutation.timestamp for mutation in mutations],
            [mutation.expired for mutation in mutations],
        ]
        arrays = [self._pyarrow.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_batch(self._pyarrow.record_batch(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class Target:
    """A file that appears when it is whole, or the standard output. Use it as a context manager."""

    def __init__(self, path: str, format: Format) -> None:
        self._path = path
        self._format = format
        self._new = Path(f"{path}.new")

    def __enter__(self) -> RowWriter:
        """Opens the file beside its place. Raises WrongUsage if that is not possible, and for bytes on a terminal."""
        if self._path == STDIO:
            if sys.stdout.isatty() and not self._format.is_text:
                raise WrongUsage(f"{self._format} is not for a terminal: name a file")
            sys.stdout.flush()
            self._raw: BinaryIO = sys.stdout.buffer
        else:
            try:
                self._raw = self._new.open("wb")
            except OSError as error:
                raise WrongUsage(f"{self._path}: {error.strerror or error}") from None
        zipped = is_gzip(self._path)
        self._file = cast("BinaryIO", gzip.GzipFile(fileobj=self._raw, mode="wb", mtime=0)) if zipped else self._raw
        self._writer = self._make_writer(self._file)
        return self._writer

    def _make_writer(self, file: BinaryIO) -> RowWriter:
        if self._format is Format.JSONL:
            return JsonLines(file)
        return Csv(file) if self._format is Format.CSV else ArrowRows(file, self._format)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Puts the whole file in its place; removes what is half written after an error."""
        if error is not None:
            self._drop()
            return
        try:
            self._writer.close()
            if self._file is not self._raw:
                self._file.close()
            self._raw.flush()
            if self._path != STDIO:
                self._raw.close()
                self._new.replace(self._path)
        except BrokenPipeError:
            raise
        except OSError as failed:
            self._drop()
            raise CommandFailed(f"{self._path}: {failed.strerror or failed}") from None

    def _drop(self) -> None:
        if self._path != STDIO:
            with contextlib.suppress(OSError):
                self._raw.close()
            with contextlib.suppress(OSError):
                self._new.unlink()
