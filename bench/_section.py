"""A section of bench/README.md that a bench writes by itself, between its marks; and the plots in it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from _report import Line, number

README = Path(__file__).with_name("README.md")
PLOTS = README.with_name("plots")
END = "<!-- end -->"
_COLUMNS = 3

# A plot's title, the text under its horizontal axis, and what draws it.
Panel: TypeAlias = tuple[str, str, Callable[[Any], None]]


def write_section(program: str, text: Sequence[str], readme: Path = README) -> None:
    """Replaces what stands between the marks of ``program``, such as ``idle.py``."""
    begin = f"<!-- by bench/{program} --readme: begin -->"
    before, _, rest = readme.read_text().partition(begin)
    after = rest.partition(END)[2]
    assert after, f"{readme} has no section of {program}"
    readme.write_text(before + "\n".join([begin, "", *text, "", END]) + after)


def setting(load: Sequence[float], stolen: float, seconds: float) -> str:
    """Returns the sentence that says on what a run was taken."""
    return (
        f"In {seconds / 60:.0f} minutes on {os.cpu_count()} processors, of which the host took {stolen:.0%}; load "
        f"{min(load):.1f} to {max(load):.1f}; Python {platform.python_version()}."
    )


def rows_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table."""
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def targets(lines: Iterable[Line]) -> list[str]:
    """Returns the lines of a table of figures and their targets."""
    made = []
    for line in lines:
        bound = "" if line.least is None and line.most is None else "at least" if line.most is None else "at most"
        wanted = f"{bound} {line.least if line.most is None else line.most:g}" if bound else ""
        verdict = (": met" if line.is_met else ": **missed**") if bound else ""
        made.append([line.what, f"{number(line.value)} {line.unit}".strip(), f"{wanted}{verdict}"])
    return rows_of(["", "found", "target"], made)


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draws the panels into one picture. The same figures give the same file."""
    import matplotlib  # only those who draw need it
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "tailrace"
    matplotlib.rcParams["svg.fonttype"] = "none"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = -(-len(panels) // _COLUMNS)
    figure = Figure(figsize=(10, 2.5 * lines), layout="constrained")
    axes = list(figure.subplots(lines, _COLUMNS, squeeze=False).flat)
    for one, (title, below, fill) in zip(axes, panels, strict=False):
        fill(one)
        one.set_title(title, fontsize="small")
        one.set_xlabel(below, fontsize="x-small")
        one.tick_params(labelsize="x-small")
        one.set_ylim(bottom=0)
        one.grid(alpha=0.3)
        if one.get_legend_handles_labels()[1]:
            one.legend(fontsize="xx-small")
    for one in axes[len(panels) :]:
        one.set_axis_off()
    figure.savefig(path, metadata={"Date": None})
