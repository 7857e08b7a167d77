"""The picture of bench/catch_up.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from catch_up import Figures

# The same input gives the same file.
matplotlib.rcParams["svg.hashsalt"] = "tailrace"


def draw(folder: Path, rows: list[int], figures: Figures, copies_from: float) -> Path:
    """Draws the times of all cases over the rows into ``folder``; the file.

    A replica copies segments by default if the leader has at least ``copies_from`` rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    live, used = figure.subplots(1, 2)
    millions = [count / 1e6 for count in rows]
    for case, found in figures.items():
        style = {
            "color": "tab:orange" if case.by_stream else "tab:blue",
            "linestyle": "--" if case.beside_writes else "-",
            "marker": "s" if case.beside_writes else "o",
            "markersize": 4,
        }
        live.plot(millions, [one.live_s for one in found], label=str(case), **style)
        used.plot(millions, [one.both_s for one in found], **style)
    live.set_title("until the replica is live", fontsize="medium")
    live.set_ylabel("seconds")
    used.set_title("processor time of both nodes until then", fontsize="medium")
    used.set_ylabel("seconds of one processor")
    for axes in (live, used):
        name = "by default a replica copies segments from here on"
        axes.axvline(copies_from / 1e6, color="gray", linestyle=":", label=name if axes is live else None)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("rows that the leader has at first, millions")
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    path = folder / "catch-up.svg"
    figure.savefig(path, metadata={"Date": None})
    return path
