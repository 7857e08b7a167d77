"""What was found of all servers: tables, targets, plots, and the section of bench/README.md."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table

from _peers.worker import PUTTERS, READERS, Found
from _report import README, Line, figures, number, replace_section, table_of

PLOTS = README.with_name("plots")
OURS = "Tailrace"

# By name of a row: the figure of each server, and the processor time of its client and of itself, if the row has it.
Bars: TypeAlias = dict[str, tuple[dict[str, float], dict[str, tuple[float, float]]]]
# By question and name of the server.
Round: TypeAlias = dict[tuple[str, str], Found]


class Run(NamedTuple):
    """All rounds; the versions of the servers, and of their clients; the part of the full sizes; the load after each
    round; the part of the processors that the host took; seconds.
    """

    rounds: list[Round]
    versions: dict[str, str]
    clients: list[str]
    scale: float
    load: list[float]
    stolen: float
    seconds: float

    def median(self, question: str, name: str, what: str) -> float | None:
        """Returns the median of the rounds of ``rate``, ``client``, ``server``, ``p50``, ``p99`` or ``seconds``.

        Processor time is in µs for an operation. None: the question was not asked.
        """
        found = [_value(round[question, name], what) for round in self.rounds if (question, name) in round]
        return median(found) if found else None

    def ratio(self, question: str, what: str, name: str, ours: str | None = None) -> float | None:
        """Returns Tailrace's figure to that of ``name``, the median of the rounds' ratios.

        ``ours`` is the question that is asked of Tailrace, if it is another one.
        """
        found = [
            _value(round[ours or question, OURS], what) / _value(round[question, name], what)
            for round in self.rounds
            if (question, name) in round and (ours or question, OURS) in round
        ]
        return median(found) if found else None


class _Row(NamedTuple):
    """A row of the table: its name, the figure, and whether more of it is better; with processor time or without."""

    question: str
    name: str
    what: str = "rate"
    more_is_better: bool = True
    has_processor: bool = True


_ROWS = (
    _Row("put_rows", "ingest by a call for each row, rows/s"),
    _Row("write", "ingest by a call for many, rows/s"),
    _Row("read", "catch-up by rows, rows/s"),
    _Row("columns", "catch-up by columns, rows/s"),
    _Row("one", "one put, p50, µs", "p50", False),
    _Row("one", "one put, p99, µs", "p99", False, False),
    _Row("many", f"{PUTTERS} putters, puts/s"),
    _Row("apart", f"{PUTTERS} putters with a client of its own each, puts/s"),
    _Row("half", "a put at half of its own limit, p50, µs", "p50", False),
    _Row("half", "a put at half of its own limit, p99, µs", "p99", False, False),
    _Row("large", "values of 512 KiB in and out, MiB/s"),
    _Row("fan_out", f"live to {READERS} consumers, rows delivered/s"),
    _Row("restart", "SIGKILL, start, first put: s", "seconds", False, False),
    _Row("restart_large", "the same with a million rows: s", "seconds", False, False),
)


def _value(found: Found, what: str) -> float:
    if what in ("client", "server"):
        spent: float = getattr(found, what)
        return spent / found.count * 1e6
    value: float = getattr(found, what)
    return value


def _cells(run: Run, row: _Row) -> dict[str, float]:
    """Returns the figure of each server that was asked."""
    found = {name: run.median(row.question, name, row.what) for name in run.versions}
    return {name: value for name, value in found.items() if value is not None}


def _first(row: _Row, cells: dict[str, float]) -> str:
    """Returns the name of the server with the best figure."""
    return (max if row.more_is_better else min)(cells, key=cells.__getitem__)


def _asked(run: Run) -> list[tuple[_Row, dict[str, float]]]:
    return [(row, cells) for row in _ROWS if (cells := _cells(run, row))]


def lines(run: Run) -> list[Line]:
    """Returns the targets, as far as the servers and questions took part."""
    found = []

    def compare(what: str, value: float | None, *, least: float | None = None, most: float | None = None) -> None:
        if value is not None:
            found.append(Line(what, value, "", least, most))

    compare("ingest by put, to Kafka's", run.ratio("put_rows", "rate", "Kafka"), least=1.0)
    compare("ingest by put: µs of the client a row", run.median("put_rows", OURS, "client"), most=1.0)
    compare("one put, p50, to Redis's", run.ratio("one", "p50", "Redis Streams"), most=1.5)
    compare("one put, p99, to Redis's", run.ratio("one", "p99", "Redis Streams"), most=1.0)
    compare("one put, p50, to NATS's", run.ratio("one", "p50", "NATS JetStream"), most=1.0)
    for name, least in (("NATS JetStream", 1.0), ("Kafka", 1.0), ("Redis Streams", 0.9)):
        compare(f"{PUTTERS} putters, puts/s, to {name}", run.ratio("many", "rate", name), least=least)
    compare(f"{PUTTERS} putters: µs of the node a put", run.median("many", OURS, "server"), most=45.0)
    compare("each at half of its own limit, p99, to Redis's", run.ratio("half", "p99", "Redis Streams"), most=1.0)
    return found


def _head(run: Run) -> list[str]:
    return ["", *(f"{name} {version}" for name, version in run.versions.items())]


def _rates(run: Run, mark: str = "") -> list[list[str]]:
    made = []
    for row, cells in _asked(run):
        best = _first(row, cells) if len(cells) > 1 else ""
        texts = {name: number(value) for name, value in cells.items()}
        if best:
            texts[best] = f"{mark}{texts[best]}{mark}"
        made.append([row.name, *(texts.get(name, "") for name in run.versions)])
    return made


def _processors(run: Run) -> list[list[str]]:
    made = []
    for row, cells in _asked(run):
        if row.has_processor:
            texts = {
                name: " + ".join(number(run.median(row.question, name, what) or 0.0) for what in ("client", "server"))
                for name in cells
            }
            name = row.name.partition(",")[0] + (", for each MiB" if row.question == "large" else "")
            made.append([name, *(texts.get(name, "") for name in run.versions)])
    return made


def table(run: Run) -> None:
    """Prints both tables."""
    for title, rows in ((_setting(run), _rates(run, "*")), ("µs of client + server", _processors(run))):
        made = Table(title=title)
        for column in _head(run):
            made.add_column(column, justify="right" if column else "left")
        for row in rows:
            made.add_row(*row)
        Console(width=160).print(made)


def _setting(run: Run) -> str:
    least, most = min(run.load), max(run.load)
    return (
        f"Medians of rounds in turns: {len(run.rounds)}, at {run.scale:g} of the sizes, "
        f"in {run.seconds / 60:.0f} minutes. {os.cpu_count()} processors, of which the host took {run.stolen:.0%}; "
        f"load {least:.1f} to {most:.1f}; "
        f"Python {platform.python_version()}, {', '.join(run.clients)}"
    )


def _verdicts(run: Run) -> list[str]:
    """Returns a sentence for each row: who is the first, and what Tailrace is to it."""
    first, behind = [], []
    for row, cells in _asked(run):
        if len(cells) > 1 and OURS in cells:
            best = _first(row, cells)
            if best == OURS:
                first.append(row.name.rpartition(",")[0] or row.name.rpartition(":")[0])
            else:
                behind.append(
                    f"- {row.name}: {best} wins; Tailrace has {cells[OURS] / cells[best]:.2f} times its figure."
                )
    return [*([f"- Tailrace is the first in: {'; '.join(first)}."] if first else []), *behind]


def write_readme(run: Run, readme: Path = README, plots: Path = PLOTS) -> None:
    """Replaces the section between its marks by tables, targets and plots of this run."""
    from _peers.plots import draw  # matplotlib takes half a second, and only this needs it

    names = draw(bars(run), plots)
    text = [f"{_setting(run)}. Bold is the first.", "", *table_of(_head(run), _rates(run, "**")), ""]
    text += ["Who wins, by this run:", "", *_verdicts(run), ""]
    text += ["Processor time for each operation, in µs, of the client + the server:", ""]
    text += [*table_of(_head(run), _processors(run)), "", *figures(lines(run)), ""]
    text += [f"![{name}](plots/{path})" for name, path in names.items()]
    replace_section(readme, "peers.py", text)


def bars(run: Run) -> Bars:
    """Returns by row the figure of each server, and the processor time of client and server."""
    made = {}
    for row, cells in _asked(run):
        of = {name: [run.median(row.question, name, what) or 0.0 for what in ("client", "server")] for name in cells}
        made[row.name] = (cells, {name: (a, b) for name, (a, b) in of.items()} if row.has_processor else {})
    return made
