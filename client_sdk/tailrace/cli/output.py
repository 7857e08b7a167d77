"""Prints bytes, values and tables. Bytes are escaped, so no stored value can control a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Without a terminal each row of a table stays on one line, for scripts.
_PIPED_WIDTH_CHARS = 400


def printable(data: bytes | str) -> str:
    """Returns one line of text. Bytes that are not UTF-8 or not printable are escaped as in Python, backslashes too."""
    text = data if isinstance(data, str) else data.decode(errors="surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char.isprintable():
        return char
    if "\udc80" <= char <= "\udcff":  # a byte that is not UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def to_json_line(value: dict[str, Any]) -> str:
    """Returns the object as a line of JSON in ASCII, with control characters escaped."""
    return json.dumps(value) + "\n"


def print_json(value: dict[str, Any]) -> None:
    """Prints an object as a line of JSON."""
    sys.stdout.write(to_json_line(value))


def print_bytes(data: bytes) -> None:
    """Prints ``data``: as an escaped line on a terminal, otherwise as it is."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        print(printable(data))
    else:
        sys.stdout.buffer.write(data)


def make_console() -> Console:
    """Returns a console of Rich on stdout."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH_CHARS, highlight=False)


def make_table(title: str, columns: Iterable[tuple[str, str]], rows: Iterable[Iterable[object]]) -> Table:
    """Makes a table; ``columns`` are headings with their alignment, "left" or "right". Cells are escaped."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for heading, justify in columns:
        table.add_column(heading, justify="right" if justify == "right" else "left")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table


def from_argument(text: str) -> bytes:
    """Returns the bytes of an argument of the command line, in any encoding."""
    return os.fsencode(text)
