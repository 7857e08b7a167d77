"""The pictures of bench/peers.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from _peers.report import OURS, Bars
from _report import number

# The same input gives the same file.
matplotlib.rcParams["svg.hashsalt"] = "tailrace"
matplotlib.rcParams["svg.fonttype"] = "none"
_COLUMNS = 3


def draw(made: Bars, folder: Path) -> dict[str, str]:
    """Draws the figures and the processor time of all servers. Returns the files by what they show."""
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / "peers.svg", {name: cells for name, (cells, _) in made.items() if len(cells) > 1}, _plain)
    processors = {name.partition(",")[0]: spent for name, (_, spent) in made.items() if len(spent) > 1}
    _save(folder / "peers-processor.svg", processors, _stacked)
    return {
        "figures of all servers": "peers.svg",
        "processor time of all, in µs for each operation": "peers-processor.svg",
    }


def _save(path: Path, panels: dict[str, Any], fill: Any) -> None:
    lines = -(-len(panels) // _COLUMNS) or 1
    figure = Figure(figsize=(10, 2.2 * lines), layout="constrained")
    axes = list(figure.subplots(lines, _COLUMNS, squeeze=False).flat)
    for one, (name, values) in zip(axes, panels.items(), strict=False):
        fill(one, values)
        one.set_title(name, fontsize="small")
        one.invert_yaxis()
        one.tick_params(labelsize="x-small")
        one.xaxis.set_major_locator(MaxNLocator(4))
        one.xaxis.set_major_formatter(EngFormatter(sep=""))
        one.margins(x=0.25)  # for the figures behind the bars
    for one in axes[len(panels) :]:
        one.set_axis_off()
    figure.savefig(path, metadata={"Date": None})


def _plain(axes: Any, values: dict[str, float]) -> None:
    colors = ["tab:blue" if name == OURS else "tab:gray" for name in values]
    _label(axes, axes.barh(list(values), list(values.values()), color=colors), list(values.values()))


def _stacked(axes: Any, values: dict[str, tuple[float, float]]) -> None:
    """µs of the client, and behind them those of the server."""
    clients, servers = zip(*values.values(), strict=True)
    axes.barh(list(values), clients, color="tab:orange", label="client")
    bars = axes.barh(list(values), servers, left=clients, color="tab:blue", label="server")
    _label(axes, bars, list(map(sum, values.values())))
    axes.legend(fontsize="xx-small")


def _label(axes: Any, bars: Any, values: list[float]) -> None:
    axes.bar_label(bars, labels=list(map(number, values)), fontsize="xx-small", padding=2)
