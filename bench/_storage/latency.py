"""Single writes beside a compaction, and beside none; and what the disk itself does beside a writer of the same rate.

bulk ── rest ── writes alone ── bulk ── writes, while the node folds ── rest ── ...
bare append and fdatasync, alone ── the same beside a bare writer

The node's writes take turns with bare appends to a file beside its own: what a neighbour of the machine does, both get.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import tailrace
from _report import Line, p99
from _server import Server, at_rest
from _storage.data import VALUE_BYTES, Rows, key_of

_FEED = "beside"
_LEVELS = ("disk", "memory")
_BARE = "bare"
# Enough that the p99 has ten above it.
_WRITES_MIN = 1_000
_WRITE_SECONDS_MAX = 20.0
_TURN = 25
_RECORD_BYTES = 320  # what a single put is in the journal
_RECORD = os.urandom(_RECORD_BYTES)
_ALLOCATE_BYTES = 4 << 20  # as the journal does it, without its zeros


class _Found:
    """Microseconds of each write by level, alone and beside a compaction, of one repeat."""

    def __init__(self) -> None:
        self.alone: dict[str, list[float]] = {level: [] for level in (*_LEVELS, _BARE)}
        self.beside: dict[str, list[float]] = {level: [] for level in (*_LEVELS, _BARE)}
        self.compaction_rate = 0.0


async def latency(folder: Path, log: Path, rows: Rows, count: int, repeats: int = 3) -> list[Line]:
    """p99 of writes with and without a compaction of about ``count`` rows, medians of ``repeats``."""
    found: list[_Found] = []
    with Server(folder / "node", log) as server, contextlib.closing(_BareFile(folder / "turns")) as bare_file:
        async with tailrace.connect(server.address) as client:
            await client.create_feed(_FEED, partitions=1)
            for _ in range(repeats):
                one = _Found()
                await _fill(client, rows, count)
                await at_rest(client, server)
                await _write(client, server, bare_file, one.alone, beside=False)
                await _fill(client, rows, count)
                one.compaction_rate = await _write(client, server, bare_file, one.beside, beside=True)
                found.append(one)
        server.stop()
    rate = median([one.compaction_rate for one in found])
    bare = [_bare(folder, rate) for _ in range(repeats)]
    bare_alone, bare_beside = median([p99(alone) for alone, _ in bare]), median([p99(beside) for _, beside in bare])
    disk, memory, turns = (
        (median([p99(one.alone[level]) for one in found]), median([p99(one.beside[level]) for one in found]))
        for level in (*_LEVELS, _BARE)
    )
    return [
        Line("a compaction writes meanwhile", rate / 2**20, "MiB/s"),
        Line(
            "writes beside a compaction, the fewest", min(len(one.beside[level]) for one in found for level in _LEVELS)
        ),
        Line("write at level memory, p99, alone", memory[0], "µs"),
        Line("write at level memory, p99, beside a compaction", memory[1], "µs"),
        Line("beside / alone, level memory", memory[1] / memory[0], most=2.0),
        Line("write at level disk, p99, alone", disk[0], "µs"),
        Line("write at level disk, p99, beside a compaction", disk[1], "µs"),
        Line("bare append and fdatasync, p99, alone", bare_alone, "µs"),
        Line("bare append and fdatasync, p99, beside a writer", bare_beside, "µs"),
        Line("level disk / bare, both beside", disk[1] / bare_beside),
        Line("bare, in turns with the node's writes, p99, alone", turns[0], "µs"),
        Line("bare, in turns with the node's writes, p99, beside a compaction", turns[1], "µs"),
        Line("level disk / bare, in turns, alone", disk[0] / turns[0]),
        Line("level disk / bare, in turns, beside a compaction", disk[1] / turns[1], most=2.0),
    ]


async def _fill(client: tailrace.Client, rows: Rows, count: int) -> None:
    async with client.feed(_FEED).writer() as writer:
        for batch in rows.batches(count):
            await writer.write(batch)


async def _write(
    client: tailrace.Client, server: Server, bare: _BareFile, times: dict[str, list[float]], *, beside: bool
) -> float:
    """Writes one at a time, the levels in turns; what comes while no compaction runs does not count ``beside`` one.

    The bytes a second that compactions wrote meanwhile.
    """
    feed, value = client.feed(_FEED), os.urandom(VALUE_BYTES)
    begin = time.perf_counter()
    seen: dict[int, list[tuple[float, int]]] = {}  # when, and how much it had written by then
    while time.perf_counter() - begin < _WRITE_SECONDS_MAX:
        for level in times:
            before = server.compactions
            turn: list[float] = []
            for number in range(_TURN):
                start = time.perf_counter_ns()
                if level == _BARE:
                    bare.append()
                else:
                    await feed.put(key_of(number), value, level=level)
                turn.append((time.perf_counter_ns() - start) / 1000)
            if not beside or set(before) & set(server.compactions):
                times[level] += turn
        for pid in server.compactions:
            seen.setdefault(pid, []).append((time.perf_counter(), server.written_bytes_of(pid)))
        if min(map(len, times.values())) >= _WRITES_MIN and (not beside or not server.compactions):
            break
    rates = [(points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0]) for points in seen.values() if points[1:]]
    return max(rates, default=0.0)


def _bare(folder: Path, rate: float) -> tuple[list[float], list[float]]:
    """Microseconds of appends with fdatasync, alone and beside a process that writes ``rate`` bytes a second."""
    alone = _appends(folder / "bare")
    command = [sys.executable, str(Path(__file__).with_name("paced.py")), str(folder / "writer"), str(int(rate))]
    with subprocess.Popen(command) as writer:
        time.sleep(1.0)
        beside = _appends(folder / "bare")
        writer.terminate()
    return alone, beside


def _appends(path: Path) -> list[float]:
    times: list[float] = []
    with contextlib.closing(_BareFile(path)) as file:
        for _ in range(_WRITES_MIN):
            start = time.perf_counter_ns()
            file.append()
            times.append((time.perf_counter_ns() - start) / 1000)
    return times


class _BareFile:
    """What is appended to it is durable at once, in space that was allocated before."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        self._end = self._allocated = 0

    def append(self) -> None:
        if self._end + _RECORD_BYTES > self._allocated:
            os.posix_fallocate(self._descriptor, self._allocated, _ALLOCATE_BYTES)
            self._allocated += _ALLOCATE_BYTES
        os.pwrite(self._descriptor, _RECORD, self._end)
        os.fdatasync(self._descriptor)
        self._end += _RECORD_BYTES

    def close(self) -> None:
        os.close(self._descriptor)
