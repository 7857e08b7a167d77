"""What was found while nodes grew: lines with targets, tables, plots, and the section of bench/README.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from _growth.mutations import Mutations
from _growth.partitions import PUTTERS, Partitions
from _growth.restarts import Restart
from _report import Line, number
from _section import PLOTS, Panel, draw, rows_of, targets, write_section

# The most by which the cost of a row, of a put or of a partition may grow while the node grows by a factor of 10 or 16.
GROWTH_MAX = 1.5
# A restart reads the journal, which has a bound, and what each partition has.
RESTART_SECONDS_MAX = 5.0

_Grown: TypeAlias = Partitions | Mutations
_One = TypeVar("_One")


def _ratio(what: str, values: Sequence[float], most: float) -> Line:
    return Line(what, values[-1] / values[0], "", most=most)


def _second(one: Mutations) -> str:
    """Names the rows of the second part of an ingest."""
    part = one.ingest_parts[0].rows
    end = one.rows - sum(each.rows for each in one.ingest_parts[2:])
    return f"from {end - part:,} to {end:,}"


def partition_lines(found: Sequence[Partitions]) -> list[Line]:
    """Returns the figures of the most partitions, and how they have grown since the fewest."""
    if len(found) < 2:
        return []
    few, many = found[0], found[-1]
    more = many.partitions - few.partitions
    times = f"with {many.partitions:,} partitions, to that with {few.partitions:,}"
    # With as few partitions as putters, several rows share a block. That is less work, so it is no basis.
    apart = next((one for one in found if one.partitions > PUTTERS), few)
    apart_times = f"with {many.partitions:,} partitions, to that with {apart.partitions:,}"
    return [
        Line("memory of an empty partition", (many.memory - few.memory) / more / 1024, "KiB"),
        Line(
            "memory of a partition with rows, more than the rows",
            (many.memory_full - few.memory_full) / more / 1024,
            "KiB",
        ),
        Line("processor at rest, for each 1,000 partitions", (many.idle_full - few.idle_full) / more, "ms/s"),
        Line(
            "restart after SIGKILL, processor for each 1,000 partitions",
            (many.killed.cpu - few.killed.cpu) / more * 1e3,
            "s",
        ),
        Line(
            f"restart after SIGKILL with {many.partitions:,} partitions",
            many.killed.wall,
            "s",
            most=RESTART_SECONDS_MAX,
        ),
        _ratio(f"processor of one put {times}", [few.put.node_us, many.put.node_us], GROWTH_MAX),
        _ratio(
            f"processor of one of {PUTTERS} puts {apart_times}",
            [apart.putters.node_us, many.putters.node_us],
            GROWTH_MAX,
        ),
    ]


def mutation_lines(found: Sequence[Mutations]) -> list[Line]:
    """Returns the figures of the most rows, and how much a row costs more than at the step before."""
    if len(found) < 2:
        return []
    before, last = found[-2:]
    times = f"at {last.rows:,} rows, to that at {before.rows:,}"
    return [
        Line(f"ingest up to {last.rows:,} rows", last.ingest.rate, "rows/s"),
        Line(f"memory of the node with {last.rows:,} rows, at most", last.memory / 2**20, "MiB", most=768),
        Line("bytes on disk for each row of 32 bytes", last.kept / last.rows, "B"),
        Line("bytes written for each row", last.written / last.rows, "B"),
        Line("processor of all compactions, for each row", last.compaction / last.rows * 1e6, "µs"),
        Line(f"restart after SIGKILL with {last.rows:,} rows", last.killed.wall, "s", most=RESTART_SECONDS_MAX),
        Line(f"restart after a clean stop with {last.rows:,} rows", last.stopped.wall, "s", most=RESTART_SECONDS_MAX),
        # The first part fills the write queues before the first flush. Later parts all cause the same work.
        _ratio(
            f"the node's processor for a row of ingest, up to {last.rows:,} rows, to that {_second(last)}",
            [part.node_us for part in last.ingest_parts[1:]],
            GROWTH_MAX,
        ),
        # Of few rows nothing has left the journal yet.
        _ratio(f"bytes on disk for a row {times}", [before.kept / before.rows, last.kept / last.rows], 2.0),
        _ratio(
            f"the node's processor for a row of catch-up {times}",
            [before.catch_up.node_us, last.catch_up.node_us],
            GROWTH_MAX,
        ),
        _ratio(f"get, p50 {times}", [before.get_us, last.get_us], 2.0),
    ]


def _flushed(one: Partitions) -> str:
    return f"{number(one.flush_us / 1e3)}; {number(one.flushes)}"


def _ninths(one: Mutations) -> str:
    return "; ".join(number(part.node_us) for part in (one.ingest_parts[1], one.ingest_parts[-1]))


def _restarted(restart: Restart) -> str:
    return f"{number(restart.wall)}; {number(restart.cpu)}"


def _partition_table(found: Sequence[Partitions]) -> list[str]:
    rows: list[tuple[str, Callable[[Partitions], str]]] = [
        ("start of an empty directory, s", lambda one: number(one.start_s)),
        ("the feed is made in, ms", lambda one: number(one.create_s * 1e3)),
        (
            "memory of the node, empty; with the rows, MiB",
            lambda one: f"{number(one.memory / 2**20)}; {number(one.memory_full / 2**20)}",
        ),
        (
            "processor at rest, empty; with the rows, ms/s",
            lambda one: f"{number(one.idle / 1e3)}; {number(one.idle_full / 1e3)}",
        ),
        ("one put, p50, µs", lambda one: number(one.put_us)),
        ("the node's processor for it, µs", lambda one: number(one.put.node_us)),
        ("64 putters, puts/s", lambda one: number(one.putters.rate)),
        ("the node's processor for one of them, µs", lambda one: number(one.putters.node_us)),
        ("ingest by Arrow, rows/s", lambda one: number(one.ingest.rate)),
        ("the node's processor for a row, µs", lambda one: number(one.ingest.node_us)),
        ("catch-up by columns, rows/s", lambda one: number(one.catch_up.rate)),
        ("the node's processor for a row of it, µs", lambda one: number(one.catch_up.node_us)),
        ("restart after SIGKILL until a get: s; of the processor", lambda one: _restarted(one.killed)),
        ("restart after a clean stop until a get: s; of the processor", lambda one: _restarted(one.stopped)),
        ("all flushed: the node's processor for each, ms; flushes/s", _flushed),
    ]
    return rows_of(
        [f"{found[0].ingest.rows:,} rows", *(f"{one.partitions:,} partitions" for one in found)],
        [[name, *(of(one) for one in found)] for name, of in rows],
    )


def _mutation_table(found: Sequence[Mutations]) -> list[str]:
    rows: list[tuple[str, Callable[[Mutations], str]]] = [
        ("ingest of the rows that came to it, rows/s", lambda one: number(one.ingest.rate)),
        ("the node's processor for a row, µs", lambda one: number(one.ingest.node_us)),
        ("the same of the second and of the last ninth of them", _ninths),
        ("memory of the node at most, MiB", lambda one: number(one.memory / 2**20)),
        ("restart after SIGKILL until a get: s; of the processor", lambda one: _restarted(one.killed)),
        ("restart after a clean stop until a get: s; of the processor", lambda one: _restarted(one.stopped)),
        ("catch-up by columns, rows/s", lambda one: number(one.catch_up.rate)),
        ("the node's processor for a row of it, µs", lambda one: number(one.catch_up.node_us)),
        ("get of a key by chance, p50, µs", lambda one: number(one.get_us)),
        ("on disk for a row of 32 bytes, bytes", lambda one: number(one.kept / one.rows)),
        ("written for a row, bytes", lambda one: number(one.written / one.rows)),
        ("processor of all compactions for a row, µs", lambda one: number(one.compaction / one.rows * 1e6)),
        ("segments", lambda one: f"{one.segments:,}"),
    ]
    return rows_of(
        ["", *(f"{one.rows:,} rows" for one in found)],
        [[name, *(of(one) for one in found)] for name, of in rows],
    )


def table(found: Sequence[_Grown]) -> list[str]:
    """Returns the lines of a table; none if nothing was found."""
    partitions = [one for one in found if isinstance(one, Partitions)]
    rows = [one for one in found if isinstance(one, Mutations)]
    made = _partition_table(partitions) if partitions else []
    return [*made, *([""] if made and rows else []), *(_mutation_table(rows) if rows else [])]


def _panel(
    what: str,
    below: str,
    found: Sequence[_One],
    at: Callable[[_One], float],
    *lines: tuple[str, Callable[[_One], float]],
) -> Panel:
    """Returns a panel of ``what``, with a line for each figure of ``found``."""

    def fill(axes: Any) -> None:
        for name, of in lines:
            axes.plot([at(one) for one in found], [of(one) for one in found], marker="o", label=name)
        axes.set_xscale("log")

    return what, below, fill


def _partition_panels(found: Sequence[Partitions]) -> list[Panel]:
    def panel(what: str, *lines: tuple[str, Callable[[Partitions], float]]) -> Panel:
        return _panel(what, "partitions", found, lambda one: one.partitions, *lines)

    return [
        panel(
            "memory, MiB",
            ("empty", lambda one: one.memory / 2**20),
            ("with the rows", lambda one: one.memory_full / 2**20),
        ),
        panel(
            "processor at rest, ms/s",
            ("empty", lambda one: one.idle / 1e3),
            ("with the rows", lambda one: one.idle_full / 1e3),
        ),
        panel(
            "the node's processor for a put, µs",
            ("one after the other", lambda one: one.put.node_us),
            ("64 putters", lambda one: one.putters.node_us),
        ),
        panel(
            "the node's processor for a row, µs",
            ("ingest", lambda one: one.ingest.node_us),
            ("catch-up", lambda one: one.catch_up.node_us),
        ),
        panel(
            "restart until a get, s",
            ("after SIGKILL", lambda one: one.killed.wall),
            ("after a clean stop", lambda one: one.stopped.wall),
            ("of an empty directory", lambda one: one.start_s),
        ),
    ]


def _mutation_panels(found: Sequence[Mutations]) -> list[Panel]:
    def panel(what: str, *lines: tuple[str, Callable[[Mutations], float]]) -> Panel:
        return _panel(what, "rows", found, lambda one: one.rows, *lines)

    return [
        panel("rows/s", ("ingest", lambda one: one.ingest.rate), ("catch-up", lambda one: one.catch_up.rate)),
        panel(
            "the node's processor for a row, µs",
            ("ingest", lambda one: one.ingest.node_us),
            ("catch-up", lambda one: one.catch_up.node_us),
            ("compactions", lambda one: one.compaction / one.rows * 1e6),
        ),
        panel("memory at most, MiB", ("the node", lambda one: one.memory / 2**20)),
        panel(
            "restart until a get, s",
            ("after SIGKILL", lambda one: one.killed.wall),
            ("after a clean stop", lambda one: one.stopped.wall),
        ),
        panel("get of a key by chance, p50, µs", ("", lambda one: one.get_us)),
        panel(
            "bytes for a row of 32",
            ("on disk", lambda one: one.kept / one.rows),
            ("written", lambda one: one.written / one.rows),
        ),
    ]


def write_readme(where: str, found: Sequence[_Grown], lines: Sequence[Line]) -> None:
    """Writes the section and its plots."""
    partitions = [one for one in found if isinstance(one, Partitions)]
    rows = [one for one in found if isinstance(one, Mutations)]
    text = [where, "", *table(found), "", *targets(lines), ""]
    if partitions:
        draw(PLOTS / "growth-partitions.svg", _partition_panels(partitions))
        text.append("![a node by its partitions](plots/growth-partitions.svg)")
    if rows:
        draw(PLOTS / "growth-rows.svg", _mutation_panels(rows))
        text.append("![a node by its rows](plots/growth-rows.svg)")
    write_section("growth.py", text)
