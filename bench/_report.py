"""A figure, its target, and the table of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


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
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(row) + " |")


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
