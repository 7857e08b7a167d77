"""A figure, its target, and the table of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

README = Path(__file__).with_name("README.md")
SECTION_END = "<!-- end -->"


class Line(NamedTuple):
    """``value`` in ``unit``; ``least`` or ``most`` is the target; where there is neither, it is as it was found."""

    what: str
    value: float
    unit: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def is_met(self) -> bool:
        """It has no target, or reaches it."""
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)


def show(lines: list[Line], title: str) -> None:
    """Prints the table."""
    table = Table(title=title)
    for column in ("what", "found", "", "target", ""):
        table.add_column(column, justify="right" if column in ("found", "target") else "left")
    for line in lines:
        bound = _bound(line)
        said = "" if bound == "as found" else "met" if line.is_met else "missed"
        table.add_row(line.what, number(line.value), line.unit, bound, said)
    Console(width=140).print(table)


def markdown(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table as bench/README.md has them."""
    print(f"\n{title}\n")
    for line in table_of(head, rows):
        print(line)


def table_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table of Markdown."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def figures(lines: Iterable[Line]) -> list[str]:
    """Returns the lines of a table of Markdown: what was found, and the targets."""
    rows = []
    for line in lines:
        bound = ""
        if line.least is not None or line.most is not None:
            word, value = ("at least", line.least) if line.least is not None else ("at most", line.most)
            bound = f"{word} {value:g}: {'met' if line.is_met else '**missed**'}"
        rows.append([line.what, f"{number(line.value)} {line.unit}".strip(), bound])
    return table_of(["", "found", "target"], rows)


def replace_section(readme: Path, program: str, text: Sequence[str]) -> None:
    """Replaces the lines of bench/README.md that ``program`` writes, between its marks.

    Raises ValueError if the marks are not there.
    """
    begin = f"<!-- by bench/{program} --readme: begin -->"
    before, mark, rest = readme.read_text().partition(begin)
    _, end, after = rest.partition(SECTION_END)
    if not mark or not end:
        raise ValueError(f"{readme} has no section of {program}: {begin!r} to {SECTION_END!r}")
    readme.write_text(before + "\n".join([begin, "", *text, "", SECTION_END]) + after)


def number(value: float) -> str:
    """With as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _bound(line: Line) -> str:
    """The target, for people."""
    if line.least is None and line.most is None:
        return "as found"
    sign, value = (">=", line.least) if line.least is not None else ("<=", line.most)
    return f"{sign} {value:,g}" if value >= 1 else f"{sign} {value:.3g}"


def p50(values: Sequence[float]) -> float:
    """The median; not a number where there are none."""
    return median(values) if values else math.nan


def p99(values: Sequence[float]) -> float:
    """The 99th percentile; not a number where there are none."""
    return sorted(values)[len(values) * 99 // 100] if values else math.nan
