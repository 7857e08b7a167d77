"""A follower goes back by 10,000 keys, which it reads again: its ring knows them.

serve ── backup ── 10,000 keys are overwritten, at level memory ── kill ── restore ── serve, at the same port

The keys are changed after a backup of the running node was made, and the node comes back as that backup. The clock
begins when the index is told to go back (its ``rollback``), and ends with a barrier: connecting again, whose waits grow
with the time that the node was away, is told apart.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import tailrace
from _report import Line
from _server import PROGRAM, Server

PARTITIONS = 16
_VALUE_BYTES = 100


class _Timed:
    """Notes when the index was first told to go back; before an index's class."""

    told_at = 0.0

    def rollback(self, partition: int, seq: int) -> int | None:
        self.told_at = self.told_at or time.perf_counter()
        found: int | None = super().rollback(partition, seq)  # type: ignore[misc]
        return found


class _MemoryIndex(_Timed, tailrace.indexes.MemoryIndex):
    def values(self) -> dict[bytes, bytes]:
        return self.state


class _SQLiteIndex(_Timed, tailrace.indexes.SQLiteIndex):
    def values(self) -> dict[bytes, bytes]:
        with contextlib.closing(sqlite3.connect(self.path)) as database:
            return dict(database.execute("SELECT key, value FROM items"))


_Made = Callable[[Path], _MemoryIndex | _SQLiteIndex]
_INDEXES: dict[str, _Made] = {
    "MemoryIndex": lambda _: _MemoryIndex(),
    "SQLiteIndex": lambda folder: _SQLiteIndex(folder / "index.db"),
}


async def rollback(folder: Path, log: Path, keys: int, repeats: int) -> list[Line]:
    """Seconds from the order to go back to a barrier, and from the node's return, for each kind of index."""
    lines = []
    for name, make in _INDEXES.items():
        found = []
        for number in range(repeats):
            (place := folder / f"{name}-{number}").mkdir()
            found.append(await _measure(place, log, keys, make))
        told, back, again = (median(column) for column in zip(*found, strict=True))
        lines += [
            Line(f"rollback of {keys:,} keys, {name}: from the order to go back to a barrier", told, "s", most=1.0),
            Line(f"rollback of {keys:,} keys, {name}: from the node's return to a barrier", back, "s"),
            Line(f"keys that {name} was given again", again),
        ]
    return lines


async def _measure(folder: Path, log: Path, keys: int, make: _Made) -> tuple[float, float, int]:
    kept = {b"key-%012d" % number: b"k" * _VALUE_BYTES for number in range(2 * keys)}
    lost = dict.fromkeys(list(kept)[:keys], b"l" * _VALUE_BYTES)
    index = make(folder)
    with Server(folder / "data", log) as server:
        async with tailrace.connect(server.address) as client:
            feed = await client.create_feed("followed", partitions=PARTITIONS)
            await feed.write([tailrace.Put(*row) for row in kept.items()])
            async with feed.follow(index, visibility="memory") as follower:
                await follower.barrier()
                _run("backup", folder / "data", folder / "backup")
                await feed.write([tailrace.Put(*row) for row in lost.items()], level="memory")
                await follower.barrier()
                assert index.values() == kept | lost
                server.kill()
                _run("restore", folder / "backup", folder / "restored")
                rows = follower.applied_rows
                with Server(folder / "restored", log, server.port):
                    returned = time.perf_counter()
                    await follower.barrier()
                    ended = time.perf_counter()
                    assert index.values() == kept
                    return ended - index.told_at, ended - returned, follower.applied_rows - rows


def _run(*command: object) -> None:
    subprocess.run([PROGRAM, *map(str, command)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
