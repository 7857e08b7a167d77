"""Rows a second at levels disk and quorum, with 0, 1 and 2 followers, and what a follower costs the leader.

All nodes share this machine's processors, so a ratio to one node tells what the machine can do, not what the leader
can; the leader's processor time for each mutation tells that.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import tailrace
from _replicas.nodes import Nodes, a_set, replicated
from _report import Line

VALUE_BYTES = 100
BATCH_ROWS = 1_000
PARTITIONS = 1  # of more, the producer would have to route each row, and be the limit

_Make = Callable[[Path, Path], contextlib.AbstractContextManager[Nodes]]


class _Kind(NamedTuple):
    name: str
    level: str
    followers: int
    make: _Make


KINDS = [
    _Kind("a node alone", "disk", 0, lambda folder, log: replicated(folder, log, 0)),
    _Kind("a leader with 1 replica", "disk", 1, lambda folder, log: replicated(folder, log, 1)),
    _Kind("a leader with 2 replicas", "disk", 2, lambda folder, log: replicated(folder, log, 2)),
    _Kind("a set of 2", "quorum", 1, lambda folder, log: a_set(folder, log, 2)),
    _Kind("a set of 3", "disk", 2, lambda folder, log: a_set(folder, log, 3)),
    _Kind("a set of 3", "quorum", 2, lambda folder, log: a_set(folder, log, 3)),
]


class _Found(NamedTuple):
    rows: float  # a second, until the last is acknowledged
    caught_up: float  # likewise, until every follower has it
    cpu: float  # the leader's, microseconds for each mutation, until then


async def ingest(folder: Path, log: Path, rows: int, repeats: int) -> list[Line]:
    """Medians of ``repeats``, the kinds in turns, each on fresh nodes."""
    found: dict[_Kind, list[_Found]] = {kind: [] for kind in KINDS}
    for number in range(repeats):
        for kind in KINDS:
            place = folder / f"{number}-{KINDS.index(kind)}"
            with kind.make(place, log) as nodes:
                found[kind].append(await _once(nodes, kind.level, rows))
    return _lines(found)


async def _once(nodes: Nodes, level: str, rows: int) -> _Found:
    leader = await nodes.leader()
    puts = [tailrace.Put(b"key-%012d" % number, os.urandom(VALUE_BYTES)) for number in range(rows)]
    async with tailrace.connect(nodes.url) as client:
        feed = await client.create_feed("bench", partitions=PARTITIONS)
        cpu, begin = leader.cpu_seconds(), time.perf_counter()
        async with feed.writer(level=level, batch_rows=BATCH_ROWS) as writer:
            for start in range(0, rows, BATCH_ROWS):
                await writer.write(puts[start : start + BATCH_ROWS])
        acknowledged = time.perf_counter() - begin
        await nodes.caught_up()
        caught_up = time.perf_counter() - begin
        return _Found(rows / acknowledged, rows / caught_up, (leader.cpu_seconds() - cpu) / rows * 1e6)


def _lines(found: dict[_Kind, list[_Found]]) -> list[Line]:
    medians = {kind: _Found(*map(median, zip(*several, strict=True))) for kind, several in found.items()}
    alone = medians[KINDS[0]]
    lines = []
    for kind, figures in medians.items():
        what = f"{kind.name}, level {kind.level}"
        lines.append(Line(f"{what}: acknowledged", figures.rows, "rows/s"))
        if kind.followers:
            lines.append(Line(f"{what}: to a node alone", figures.rows / alone.rows, "x"))
            lines.append(Line(f"{what}: on every follower", figures.caught_up, "rows/s"))
        lines.append(Line(f"{what}: the leader's processor", figures.cpu, "µs/mutation"))
        if kind.followers:
            lines.append(
                Line(
                    f"{what}: likewise, more for each follower",
                    (figures.cpu - alone.cpu) / kind.followers,
                    "µs/mutation",
                )
            )
    return lines
