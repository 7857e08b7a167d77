"""Reads CSV: a line with the names of the columns, then the rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from tailrace.cli.rowfiles.records import BadRecord, Record
from tailrace.cli.rowfiles.sources import LINE_BYTES_MAX


def csv_records(lines: Iterable[bytes], delimiter: str) -> Iterator[Record]:
    """Yields the rows of a CSV file. Every value is a string. Raises BadRecord.

    The place of a row that has several lines is its last line.
    """
    csv.field_size_limit(LINE_BYTES_MAX)
    reader = csv.reader(_decoded(lines), delimiter=delimiter, strict=True)
    names: list[str] | None = None
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise BadRecord(f"line {reader.line_num}", f"this is not CSV: {error}") from None
        if row is None:
            return
        place = f"line {reader.line_num}"
        if names is None:
            names = _names(place, row)
        elif row:
            if len(row) != len(names):
                raise BadRecord(place, f"{len(row)} fields, and the first line names {len(names)} columns")
            yield Record(place, dict(zip(names, row, strict=True)))


def _names(place: str, row: list[str]) -> list[str]:
    twice = next((name for number, name in enumerate(row) if name in row[:number]), None)
    if twice is not None:
        raise BadRecord(place, f"the column {twice!r} is named twice")
    return row


def _decoded(lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise BadRecord(f"line {number}", f"this is not UTF-8: byte {error.start + 1}") from None
