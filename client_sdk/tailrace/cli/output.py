"""How bytes and values are shown, so that nothing that is stored in a feed can do anything to a terminal."""

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

# Where the output is no terminal a row stays a line: no script should have to put broken ones together.
_PIPED_WIDTH_CHARS = 400


def printable(data: bytes | str) -> str:
    """One line of text. What is not UTF-8 or cannot be printed becomes an escape, and a backslash two, as in Python."""
    text = data if isinstance(data, str) else data.decode(errors="surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char.isprintable():
        return char
    if "\udc80" <= char <= "\udcff":  # a byte that is no UTF-8
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def to_json_line(value: dict[str, Any]) -> str:
    """An object on a line of its own, in ASCII: what a terminal would act on is escaped."""
    return json.dumps(value) + "\n"


def print_json(value: dict[str, Any]) -> None:
    """``to_json_line`` on stdout."""
    sys.stdout.write(to_json_line(value))


def print_bytes(data: bytes) -> None:
    """``data`` on stdout: as it is where a program reads, on a line and safe where a person does."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        print(printable(data))
    else:
        sys.stdout.buffer.write(data)


def make_console() -> Console:
    """Rich's console on stdout."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH_CHARS, highlight=False)


def make_table(title: str, columns: Iterable[tuple[str, str]], rows: Iterable[Iterable[object]]) -> Table:
    """A table; ``columns`` are headings and how they are aligned ("left", "right"). Cells are shown as they are."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for heading, justify in columns:
        table.add_column(heading, justify="right" if justify == "right" else "left")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table


def from_argument(text: str) -> bytes:
    """The bytes that were given on the command line, whatever their encoding."""
    return os.fsencode(text)
