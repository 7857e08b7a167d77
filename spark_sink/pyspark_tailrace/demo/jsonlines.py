"""Writes changes as JSON-lines files to a folder that Spark's file source watches.

A row: {"order": 17, "key": "<base64>", "value": "<text>", "deleted": false}. ``order`` counts the changes from 1 and
tells the later of two changes of a key, because Spark assigns files to tasks by their sizes. The key is base64, because
a path may be any bytes and JSON is text. The value is JSON itself, as a string, so that its bytes do not change; it is
null if ``deleted``.

A file appears complete, by a rename from a name with a leading dot, which Spark ignores. Spark takes files in the order
of their modification times, in milliseconds, so each file gets a later time than the one before it.
"""

from __future__ import annotations

import base64
import json
import os
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark_tailrace.demo.changes import Change

SPARK_SCHEMA = "order LONG, key STRING, value STRING, deleted BOOLEAN"

# A Spark task reads whole files: small enough for several tasks and micro-batches, large enough to be few.
FILE_BYTES_MAX = 8 << 20
FILE_ROWS_MAX = 50_000


class WrittenFile(NamedTuple):
    """A file that was written. ``last_order`` and ``step`` are those of its last row's change."""

    path: Path
    rows: int
    nbytes: int
    last_order: int
    step: int


def write_json_lines(
    changes: Iterable[Change],
    folder: Path,
    *,
    file_bytes_max: int = FILE_BYTES_MAX,
    file_rows_max: int = FILE_ROWS_MAX,
) -> Iterator[WrittenFile]:
    """Writes the changes to ``folder``, which is created if missing, and yields each file when it is complete.

    The caller's loop sets the pace: no file is written ahead. A file has at most ``file_rows_max`` rows and
    ``file_bytes_max`` bytes; a row over this bound gets its own file. Raises ValueError if the folder already has such
    files, because Spark would read them, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if next(folder.glob("part-*.jsonl"), None) is not None:
        raise ValueError(f"{folder} has files of an earlier run: give an empty folder")
    modified_ms = 0
    order = 0
    for number, rows in enumerate(_files_of(changes, file_bytes_max, file_rows_max), start=1):
        order += len(rows.lines)
        modified_ms = max(modified_ms + 1, time.time_ns() // 1_000_000)
        path = folder / f"part-{number:06}.jsonl"
        _publish(path, rows.lines, modified_ms)
        yield WrittenFile(path, len(rows.lines), rows.nbytes, order, rows.step)


def encode_row(order: int, change: Change) -> bytes:
    """Returns the line of a change, with its line feed."""
    row = {
        "order": order,
        "key": base64.b64encode(change.key).decode(),
        "value": None if change.value is None else change.value.decode(),
        "deleted": change.value is None,
    }
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class _FileRows:
    """The rows of one file."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.nbytes = 0
        self.step = 0

    def add(self, line: bytes, step: int) -> None:
        self.lines.append(line)
        self.nbytes += len(line)
        self.step = step


def _files_of(changes: Iterable[Change], bytes_max: int, rows_max: int) -> Iterator[_FileRows]:
    rows = _FileRows()
    for order, change in enumerate(changes, start=1):
        line = encode_row(order, change)
        if rows.lines and (rows.nbytes + len(line) > bytes_max or len(rows.lines) == rows_max):
            yield rows
            rows = _FileRows()
        rows.add(line, change.step)
    if rows.lines:
        yield rows


def _publish(path: Path, lines: list[bytes], modified_ms: int) -> None:
    hidden = path.with_name(f".{path.name}.writing")
    try:
        with hidden.open("wb") as file:
            file.writelines(lines)
        modified_ns = modified_ms * 1_000_000
        os.utime(hidden, ns=(modified_ns, modified_ns))
        hidden.rename(path)
    finally:
        hidden.unlink(missing_ok=True)  # it is left after an error, such as a full disk
