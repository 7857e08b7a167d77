"""SIGKILL for the leader of a set of three, then promote: until the first write is accepted and delivered.

The promotion is asked for as the command does it, without the command's own start, which is measured beside it. A
writer and a consumer, both at level quorum, have been at work before and go on by themselves.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from statistics import median

import trio

import tailrace
from _replicas.nodes import a_set, ask
from _replicas.taker import MARK
from _report import Line
from _server import PROGRAM
from _streams.processes import Helper
from tailrace.wire.opcodes import Opcode

ROWS = 200_000
VALUE_BYTES = 100
_NS = 1e9


async def failover(folder: Path, log: Path, rows: int, repeats: int) -> list[Line]:
    """Medians and the longest of ``repeats``, each on a fresh set with so many rows."""
    found: dict[str, list[float]] = {}
    for number in range(repeats):
        for what, seconds in (await _once(folder / str(number), log, rows)).items():
            found.setdefault(what, []).append(seconds)
    lines = []
    for what, several in found.items():
        lines.append(Line(f"{what}: median", median(several) * 1000, "ms"))
        most = None if what.startswith("promote") else 1_000.0
        lines.append(Line(f"{what}: longest of {repeats}", max(several) * 1000, "ms", most=most))
    return [*lines, Line("the command's own start", _command_start() * 1000, "ms")]


async def _once(folder: Path, log: Path, rows: int) -> dict[str, float]:
    with a_set(folder, log, failover="manual") as nodes:
        leader = await nodes.leader()
        async with tailrace.connect(nodes.url) as client:
            feed = await client.create_feed("bench", partitions=4)
            async with feed.writer(level="quorum") as writer:
                for key in range(rows):
                    await writer.put(b"key-%012d" % key, os.urandom(VALUE_BYTES))
            taker = Helper(str(Path(__file__).with_name("taker.py")), nodes.url, "bench", "quorum")
            try:
                assert taker.line() == "ready"
                await feed.put(b"key", MARK + b"before", level="quorum")
                assert taker.line().startswith("mark-before")
                other = (await nodes.followers())[0]
                leader.kill()
                return await _promoted(feed, taker, other)
            finally:
                taker.process.kill()
                taker.process.communicate()


async def _promoted(feed: tailrace.Feed, taker: Helper, other: object) -> dict[str, float]:
    begin = time.monotonic_ns()
    done: dict[str, float] = {}

    async def write() -> None:
        # Sent to the dead leader, and again to the new one.
        await feed.put(b"key", MARK + b"after", level="quorum")
        done["first write accepted after promote was asked for"] = (time.monotonic_ns() - begin) / _NS

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await ask(other, Opcode.PROMOTE, {"force": False})  # type: ignore[arg-type]
        done["promote answered"] = (time.monotonic_ns() - begin) / _NS
    line = await trio.to_thread.run_sync(taker.line)
    done["a consumer has it after promote was asked for"] = (int(line.split()[1]) - begin) / _NS
    return done


def _command_start() -> float:
    begin = time.perf_counter()
    subprocess.run([PROGRAM, "promote", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin
