"""What holds up a writer of single puts: thousands of partitions, of which something is to be done at once.

    python bench/stalls.py [--partitions 1024 4096] [--only aged trim ...] [--folder DIR]

For each question and number of partitions a real node does what is asked for, and one task writes to a feed of one
partition meanwhile, one put after the other at level `disk`, each of 1 KB. What is told: p50, p99 and the longest time
of a put, the longest turn of the node's loop and the processor time of the longest one of those, and where that was.

    alone      nothing else: what the machine gives
    aged       queues of all partitions are due for their age at once
    trim       after SIGKILL with a journal of several files and rows of all partitions in it: it is flushed and trimmed
    branches   likewise with partitions that are empty: all that keeps the journal is that each has begun a new branch
    bulk       another process writes rows of 1 KB as fast as it can
    aged-bulk, trim-bulk   both
    compact    all partitions have enough segments to be folded
    feeds      a feed with all the partitions is created, and dropped when it has segments
    status     status is asked for
    streams    a consumer opens a stream of each partition
    backup     a backup is taken
    follower   a replica copies all partitions; its own turns are told too

Settings of the node are smaller than by default, so that each takes seconds: files of the journal of 4 MiB.
Exit code 1 where the p99 of the puts is 100 ms or more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import trio

import tailrace
from _report import Line, p50, p99, show
from _server import PROGRAM, Server
from _stalls.report import Report, Window

# The target of issue 13.31.
P99_SECONDS_MAX = 0.100
# A turn of the loop may take no longer, of whatever is done.
TURN_SECONDS_MAX = 0.250
_MIB = 1 << 20
_VALUE = os.urandom(1_000)
_FILL_BYTES = 24 * _MIB
_AGE_S = 8.0
_SECONDS_MAX = 240.0
_SEGMENTS_FOLDED = 4
# A replica that lacks no more rows than are written between two looks has caught up.
_LAG_MAX = 1_000
_SMALL_JOURNAL = {"journal_file_bytes_max": 4 * _MIB, "journal_bytes_max": 16 * _MIB}
_HERE = Path(__file__).parent / "_stalls"
_BESIDE, _MANY, _BULK = "beside", "many", "bulk"


class Writer:
    """A process that writes to a node while its body runs; what it prints is read when it has ended."""

    def __init__(self, program: str, node: Node, feed: str) -> None:
        self._path = node.folder / f"{feed}-{time.monotonic_ns()}"
        self._command = [sys.executable, str(_HERE / program), node.server.address, feed]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._path.open("w") as output:
            self._process = subprocess.Popen(self._command, stdout=output)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _told(self) -> list[tuple[float, ...]]:
        lines = self._path.read_text().splitlines(keepends=True)
        return [tuple(map(float, line.split())) for line in lines if line.endswith("\n")]


class Puts(Writer):
    """Single puts, one after the other."""

    def lines(self, what: str, window: Window) -> list[Line]:
        """Of those that were under way in ``window``."""
        found = [took for begin, took in self._told() if begin < window.end and begin + took >= window.begin]
        return [
            Line(f"{what}: puts", len(found)),
            Line("p50 of a put", p50(found) * 1e3, "ms"),
            Line("p99 of a put", p99(found) * 1e3, "ms", most=P99_SECONDS_MAX * 1e3),
            Line("longest time of a put", max(found, default=0.0) * 1e3, "ms"),
        ]


class Bulk(Writer):
    """Rows of 1 KB, as fast as the node takes them."""

    def lines(self, window: Window) -> list[Line]:
        """Its rate, and how long it stood still."""
        told = [line for line in self._told() if line[0] in window]
        if len(told) < 2:
            return [Line("rows of the bulk writer", 0, "rows/s")]
        rate = (told[-1][1] - told[0][1]) / (told[-1][0] - told[0][0])
        return [
            Line("rows of the bulk writer", rate, "rows/s"),
            Line("longest write of 1,000 of its rows", max(line[2] for line in told[1:]) * 1e3, "ms"),
        ]


class Node:
    """A node with its report, in a folder of its own; may be started again with other settings."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._starts = 0
        self.start(**settings)

    def start(self, *, options: tuple[str, ...] = (), **settings: Any) -> None:
        """Starts it on the same data."""
        self._starts += 1
        path = self.folder / f"report-{self._starts}"
        program = (sys.executable, str(_HERE / "node.py"), str(path))
        options += tuple(word for name, value in settings.items() for word in ("--set", f"storage.{name}={value}"))
        self.server = Server(self.folder / "data", self.folder / "log", options=options, program=program)
        self.report = Report(path)

    def counts(self) -> dict[str, Any]:
        """What the node has done since its start."""
        return self.report.counts()

    def lines(self, window: Window, whose: str = "the node") -> list[Line]:
        """Its turns in ``window``."""
        turns = self.report.turns(window)
        longest, busiest = max(turns, key=lambda t: t.wall, default=None), max(turns, key=lambda t: t.cpu, default=None)
        for turn in sorted(turns, key=lambda t: -t.cpu)[:4]:
            print(f"  a turn of {whose}: {turn}")
        counts = self.report.counts_in(window)
        cpu = counts[-1]["cpu"] - counts[0]["cpu"] if counts else 0.0
        loop_cpu = counts[-1]["loop_cpu"] - counts[0]["loop_cpu"] if counts else 0.0
        return [
            Line(f"longest turn of {whose}", longest.wall * 1e3 if longest else 0.0, "ms"),
            Line(
                "of processor time, the longest",
                busiest.cpu * 1e3 if busiest else 0.0,
                "ms",
                most=TURN_SECONDS_MAX * 1e3,
            ),
            Line("turns of 50 ms or more", sum(turn.wall >= 0.05 for turn in turns)),
            Line("the longest search for garbage", max(self.report.searches(window), default=0.0) * 1e3, "ms"),
            Line(f"seconds of it, processor time of {whose}, of its loop", window.end - window.begin),
            Line("", cpu, "s"),
            Line("", loop_cpu, "s"),
        ]


@contextlib.asynccontextmanager
async def _putting(node: Node) -> AsyncIterator[Puts]:
    """Puts are written in the body; a feed for them is there already, or made."""
    async with tailrace.connect(node.server.address) as client:
        await client.create_feed(_BESIDE, partitions=1)
    with Puts("puts.py", node, _BESIDE) as puts:
        await trio.sleep(2.0)
        yield puts


async def _fill(client: tailrace.Client, name: str, partitions: int, nbytes: int = _FILL_BYTES) -> None:
    """Writes rows of 1 KB: some to nearly all of the partitions."""
    feed = await client.create_feed(name, partitions=partitions)
    async with feed.writer() as writer:
        for begin in range(0, max(nbytes // 1_000, 4 * partitions), 1_000):
            await writer.write([tailrace.Put(b"row-%08d" % number, _VALUE) for number in range(begin, begin + 1_000)])


async def _until(is_done: Callable[[], bool]) -> None:
    with trio.move_on_after(_SECONDS_MAX) as scope:
        while True:
            if is_done():
                break
            await trio.sleep(0.3)
    if scope.cancelled_caught:
        print(f"stalls: not done after {_SECONDS_MAX:g} s", file=sys.stderr)


@contextlib.asynccontextmanager
async def _bulk(node: Node, *, wanted: bool) -> AsyncIterator[Bulk | None]:
    """The other writer writes in the body, if it is wanted."""
    if not wanted:
        yield None
        return
    async with tailrace.connect(node.server.address) as client:
        await client.create_feed(_BULK, partitions=4)
    with Bulk("bulk.py", node, _BULK) as bulk:
        await trio.sleep(2.0)
        yield bulk


async def alone(folder: Path, partitions: int) -> list[Line]:
    node = Node(folder)
    with node.server:
        async with _putting(node) as puts:
            begin = time.monotonic()
            await trio.sleep(8.0)
        window = Window(begin, time.monotonic())
    return [*puts.lines("alone", window), *node.lines(window)]


async def bulk(folder: Path, partitions: int) -> list[Line]:
    node = Node(folder)
    with node.server:
        async with _bulk(node, wanted=True) as writer, _putting(node) as puts:
            assert writer is not None
            begin = time.monotonic()
            await trio.sleep(15.0)
            window = Window(begin, time.monotonic())
        return [*puts.lines("beside a bulk writer", window), *node.lines(window), *writer.lines(window)]


async def aged(folder: Path, partitions: int, *, with_bulk: bool = False) -> list[Line]:
    node = Node(folder, flush_age_s=_AGE_S)
    with node.server:
        async with _bulk(node, wanted=with_bulk) as writer:
            async with tailrace.connect(node.server.address) as client:
                await _fill(client, _MANY, partitions, 4_000 * partitions)
            async with _putting(node) as puts:
                before = node.counts().get("flushes", 0)
                await _until(lambda: node.counts().get("flushes", 0) > before + 10)
                begin = time.monotonic()
                await _until(lambda: node.counts().get("flushes", 0) > 0.98 * partitions)
                window = Window(begin, time.monotonic())
        found = [*puts.lines(f"{partitions:,} aged queues", window), *node.lines(window)]
        return found + (writer.lines(window) if writer else [])


async def trim(folder: Path, partitions: int, *, with_bulk: bool = False, rows: bool = True) -> list[Line]:
    node = Node(folder, journal_file_bytes_max=4 * _MIB)
    async with tailrace.connect(node.server.address) as client:
        if rows:
            await _fill(client, _MANY, partitions)
        else:
            await client.create_feed(_MANY, partitions=partitions)
    node.server.kill()
    node.start(**_SMALL_JOURNAL)
    with node.server:
        async with _bulk(node, wanted=with_bulk) as writer, _putting(node) as puts:
            found = node.counts()
            begin, newest = time.monotonic(), found["file"]
            await _until(lambda: (now := node.counts())["file"] - now["files"] + 1 > newest)
            window = Window(begin, time.monotonic())
            flushes = node.counts()["flushes"] - found["flushes"]
        what = f"trim of {partitions:,} partitions ({flushes} flushes)"
        lines = [*puts.lines(what, window), *node.lines(window)]
        return lines + (writer.lines(window) if writer else [])


async def branches(folder: Path, partitions: int) -> list[Line]:
    return await trim(folder, partitions, rows=False)


async def aged_bulk(folder: Path, partitions: int) -> list[Line]:
    return await aged(folder, partitions, with_bulk=True)


async def trim_bulk(folder: Path, partitions: int) -> list[Line]:
    return await trim(folder, partitions, with_bulk=True)


@contextlib.asynccontextmanager
async def _measured(node: Node, what: str) -> AsyncIterator[list[Line]]:
    """Puts rows while the body runs. After it, the list has the lines that tell how ``what`` delayed them."""
    lines: list[Line] = []
    async with _putting(node) as puts:
        begin = time.monotonic()
        yield lines
        window = Window(begin, time.monotonic())
    lines += [*puts.lines(what, window), *node.lines(window)]


@contextlib.asynccontextmanager
async def _filled(
    folder: Path, partitions: int, *, is_flushed: bool = False
) -> AsyncIterator[tuple[Node, tailrace.Client]]:
    """Serves a node whose feed has 4,000 bytes in each of many partitions, in segments if it is flushed."""
    node = Node(folder, flush_age_s=1.0) if is_flushed else Node(folder)
    with node.server:
        async with tailrace.connect(node.server.address) as client:
            await _fill(client, _MANY, partitions, 4_000 * partitions)
            if is_flushed:
                await _until(lambda: node.counts().get("flushes", 0) >= 0.98 * partitions)
            yield node, client


async def compact(folder: Path, partitions: int) -> list[Line]:
    node = Node(folder, flush_age_s=1.0)
    with node.server:
        async with tailrace.connect(node.server.address) as client:
            for _ in range(1, _SEGMENTS_FOLDED):
                await _fill(client, _MANY, partitions, 4_000 * partitions)
                await _until(lambda: not node.counts().get("dirty", 1))
            async with _measured(node, f"{partitions:,} flushes and folds") as lines:
                await _fill(client, _MANY, partitions, 4_000 * partitions)
                await _until(lambda: node.counts()["compactions"] >= 0.98 * partitions)
    return lines


async def feeds(folder: Path, partitions: int) -> list[Line]:
    node = Node(folder, flush_age_s=1.0)
    with node.server:
        async with tailrace.connect(node.server.address) as client:
            async with _measured(node, f"a feed of {partitions:,} partitions is created") as created:
                await client.create_feed("other", partitions=partitions)
                await trio.sleep(2.0)
            await _fill(client, _MANY, partitions, 4_000 * partitions)
            await _until(lambda: node.counts().get("flushes", 0) >= 0.98 * partitions)
            async with _measured(node, f"a feed of {partitions:,} segments is dropped") as dropped:
                await client.drop_feed(_MANY)
                await client.drop_feed("other")
                await trio.sleep(4.0)
    return created + dropped


async def status(folder: Path, partitions: int) -> list[Line]:
    async with (
        _filled(folder, partitions) as (node, client),
        _measured(node, f"status of {partitions:,} partitions") as lines,
    ):
        for _ in range(10):
            await client.status()
    return lines


async def streams(folder: Path, partitions: int) -> list[Line]:
    async with (
        _filled(folder, partitions) as (node, _),
        _measured(node, f"{partitions:,} streams are opened and read") as lines,
    ):
        await trio.run_process([sys.executable, str(_HERE / "consumer.py"), node.server.address, _MANY])
    return lines


async def backup(folder: Path, partitions: int) -> list[Line]:
    async with (
        _filled(folder, partitions, is_flushed=True) as (node, _),
        _measured(node, f"a backup of {partitions:,} partitions") as lines,
    ):
        command = [PROGRAM, "backup", str(node.server.folder), str(folder / "backup")]
        await trio.run_process(command, capture_stdout=True)
    return lines


async def follower(folder: Path, partitions: int) -> list[Line]:
    leader = Node(folder / "leader")
    with leader.server:
        async with tailrace.connect(leader.server.address) as client:
            await _fill(client, _MANY, partitions, 4_000 * partitions)
        options = ("--replica-of", f"127.0.0.1:{leader.server.port}")
        replica = None
        lines: list[Line] = []
        for what in ("copied", "followed again"):
            async with _putting(leader) as puts:
                begin = time.monotonic()
                if replica is None:
                    replica = Node(folder / "replica", options=options)
                else:
                    replica.start(options=options)
                with replica.server:
                    await _until(partial(_is_in_step, leader, replica))
                    await trio.sleep(2.0)
                    window = Window(begin, time.monotonic())
            lines += puts.lines(f"{partitions:,} partitions are {what}", window)
            lines += [*leader.lines(window, "the leader"), *replica.lines(window, "the replica")]
    return lines


def _is_in_step(leader: Node, replica: Node) -> bool:
    """The replica has nearly all that the leader has."""
    return replica.counts().get("high", 0) >= leader.counts()["high"] - _LAG_MAX


QUESTIONS: dict[str, Callable[[Path, int], Awaitable[list[Line]]]] = {
    "alone": alone,
    "aged": aged,
    "trim": trim,
    "branches": branches,
    "bulk": bulk,
    "aged-bulk": aged_bulk,
    "trim-bulk": trim_bulk,
    "compact": compact,
    "feeds": feeds,
    "status": status,
    "streams": streams,
    "backup": backup,
    "follower": follower,
}
# What does not depend on the number of partitions.
_ONCE = ("alone", "bulk")


def _asked(only: list[str], partitions: list[int]) -> Iterator[tuple[str, int]]:
    for name in only:
        for count in partitions[:1] if name in _ONCE else partitions:
            yield name, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_024, 4_096])
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION")
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    args = parser.parse_args()
    is_met = True
    for name, count in _asked(args.only, args.partitions):
        print(f"stalls: {name}, {count:,} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as folder:
            lines = trio.run(QUESTIONS[name], Path(folder) / "node", count)
        show(lines, f"{name}, {count:,} partitions")
        is_met = is_met and all(line.is_met for line in lines)
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
