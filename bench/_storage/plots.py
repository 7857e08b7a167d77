"""The pictures of bench/README.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from _storage.growth import Size
from _storage.ingest import Ingest

# The same input gives the same file.
matplotlib.rcParams["svg.hashsalt"] = "tailrace"


def draw(folder: Path, run: Ingest, sizes: list[Size]) -> list[Path]:
    """Draws what was found into ``folder``; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [size.rows for size in sizes]

    def rate(axes: Any) -> None:
        axes.plot([(n + 1) * run.part_rows for n in range(len(run.rates))], run.rates, label="one run without a stop")
        axes.plot(rows, [size.rate for size in sizes], marker="o", label="with restarts between the sizes")
        axes.set_ylabel("rows/s")

    def memory(axes: Any) -> None:
        writing = [sample for sample in run.samples if sample.rows < run.rows]
        axes.plot([s.rows for s in writing], [s.node / 2**20 for s in writing], label="the node")
        axes.plot([s.rows for s in writing], [s.compactions / 2**20 for s in writing], label="its compaction")
        axes.set_ylabel("RssAnon, MiB")

    def restart(axes: Any) -> None:
        axes.plot(rows, [size.after_kill_s for size in sizes], marker="o", label="after SIGKILL")
        axes.plot(rows, [size.after_stop_s for size in sizes], marker="o", label="after a clean stop")
        axes.set_ylabel("s until the first answer")

    def gets(axes: Any) -> None:
        # Nothing is flushed at the small sizes: the line begins where something is.
        axes.plot(rows, [size.get_us for size in sizes], marker="o", label="flushed key, in the node")
        axes.plot(rows, [size.round_trip_us for size in sizes], marker="o", label="any key, over TCP")
        axes.set_ylabel("p50, µs")

    pictures: Sequence[tuple[str, Callable[[Any], None], bool]] = (
        ("storage-ingest", rate, False),
        ("storage-memory", memory, False),
        ("storage-restart", restart, True),
        ("storage-get", gets, True),
    )
    return [_draw(folder / f"{name}.svg", picture, logarithmic) for name, picture, logarithmic in pictures]


def _draw(path: Path, picture: Callable[[Any], None], logarithmic: bool) -> Path:
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    picture(axes)
    if logarithmic:
        axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows in the feed")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    return path
