"""The pictures of bench/peers.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from _peers.report import Run

# The same input gives the same file.
matplotlib.rcParams["svg.hashsalt"] = "tailrace"
matplotlib.rcParams["svg.fonttype"] = "none"
_COLUMNS = 3


def draw(run: Run, folder: Path) -> dict[str, str]:
    """Draws the figures and the processor time of all servers. Returns the files by what they show."""
    from _peers.report import bars

    folder.mkdir(parents=True, exist_ok=True)
    made = bars(run)
    _save(folder / "peers.svg", {name: cells for name, (cells, _) in made.items() if len(cells) > 1}, _plain)
    processors = {name.partition(",")[0]: spent for name, (_, spent) in made.items() if len(spent) > 1}
    _save(folder / "peers-processor.svg", processors, _stacked)
    return {"figures of all servers": "peers.svg", "processor time of all servers": "peers-processor.svg"}


def _save(path: Path, panels: dict[str, Any], fill: Any) -> None:
    lines = -(-len(panels) // _COLUMNS) or 1
    figure = Figure(figsize=(10, 2.2 * lines), layout="constrained")
    axes = figure.subplots(lines, _COLUMNS, squeeze=False).flat
    for one, (name, values) in zip(axes, panels.items(), strict=False):
        fill(one, values)
        one.set_title(name, fontsize="small")
        one.invert_yaxis()
        one.tick_params(labelsize="x-small")
    for one in list(axes)[len(panels) :]:
        one.set_axis_off()
    figure.savefig(path, metadata={"Date": None})


def _plain(axes: Any, values: dict[str, float]) -> None:
    axes.barh(list(values), list(values.values()), color=["tab:blue", *["tab:gray"] * (len(values) - 1)])


def _stacked(axes: Any, values: dict[str, tuple[float, float]]) -> None:
    """µs of the client, and behind them those of the server."""
    clients = [client for client, _ in values.values()]
    axes.barh(list(values), clients, color="tab:orange", label="client, µs")
    axes.barh(
        list(values), [server for _, server in values.values()], left=clients, color="tab:blue", label="server, µs"
    )
    axes.legend(fontsize="x-small")
