"""Prints bytes, values and tables. Bytes are escaped, so no stored value can control a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
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


def make_table(title: str, columns: Iterable[tuple[str, str]], rows: Iterable[Iterable[object]]) -> RenderableType:
    """Makes a table; ``columns`` are headings with their alignment, "left" or "right". Cells are escaped.

    In a terminal that is too narrow, headings and cells go on in further lines. None is cut.
    """
    return _Fitted(title, list(columns), [[printable(str(cell)) for cell in row] for row in rows])


class _Fitted(NamedTuple):
    """A table that fits its columns into the width in which it is rendered."""

    title: str
    columns: list[tuple[str, str]]
    rows: list[list[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[row[number] for row in self.rows] for number in range(len(self.columns))]
        wanted = [_wanted(*column, texts) for column, texts in zip(self.columns, cells, strict=True)]
        table = Table(title=self.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        room = options.max_width - 3 * len(wanted) - 1
        if sum(natural for _, natural in wanted) > room:
            room = options.max_width - 2 * len(wanted) + 1
            table.padding, table.show_edge = (0, 1, 0, 0), False
        for (heading, justify), width in zip(self.columns, fit(wanted, room), strict=True):
            table.add_column(heading, justify="right" if justify == "right" else "left", width=width, overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        yield table


def _wanted(heading: str, justify: str, cells: list[str]) -> tuple[int, int]:
    """Returns the least width of a column in which no word of its heading and no number is broken; and the natural."""
    longest = max(map(cell_len, cells), default=0)
    word = max(map(cell_len, heading.split()), default=1)
    return max(word, longest if justify == "right" else 0), max(cell_len(heading), longest, 1)


def fit(wanted: Sequence[tuple[int, int]], room: int) -> list[int]:
    """Returns the width of each column, of which the least and the natural ones are given.

    Together they have ``room`` characters at most, if each column can have one. The widest columns give way first, and
    none goes below its least width before all have come to theirs.
    """
    widths = [natural for _, natural in wanted]
    for floors in ([least for least, _ in wanted], [1] * len(wanted)):
        for _ in range(sum(widths) - room):
            wide = [number for number, width in enumerate(widths) if width > floors[number]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def from_argument(text: str) -> bytes:
    """Returns the bytes of an argument of the command line, in any encoding."""
    return os.fsencode(text)
