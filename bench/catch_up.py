"""How long an empty replica takes until it is live, by segments and by a stream, over the rows that the leader has.

    python bench/catch_up.py [--rows 500000 1000000 2000000 3500000 5000000] [--partitions 16] [--repeats 1]
        [--without-writes] [--plots bench/plots] [--folder DIR]

A node (`tailrace serve`) gets rows of 16 + 100 bytes that do not compress, a history at level disk, and moves them to
segments. Then, in turns, an empty `tailrace serve --replica-of` is started: with ``catch_up_bytes_min`` 0, so that it
copies segments first, however few they are; and with None, so that it streams everything. Each is done twice: while
nothing is written, and, on a copy of the node's directory, while this program writes blocks of 1,000 rows at half of
the limit. The limit is what the node takes with a replica that is live, and is measured first.

Measured from the start of the replica's listener until it is live: on its disk is all that the leader had
LAG_SECONDS before. Processor time is that of the nodes until then, with their compactions that have ended.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import trio

import tailrace
from _replicas.blocks import Blocks, write_paced, write_rows
from _replicas.nodes import flush, replicated
from _report import markdown
from _server import Processor, Server, Stolen, at_rest
from tailrace.link.address import Address
from tailrace.trio.request import ask
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Replication

ROWS = (500_000, 1_000_000, 2_000_000, 3_500_000, 5_000_000)
LAG_SECONDS = 0.1
_LIMIT_ROWS = 1_500_000
_POLL_SECONDS = 0.02
_SECONDS_MAX = 30.0
_FEED = "orders"


class Case(NamedTuple):
    """A way to catch up, and whether rows are written meanwhile."""

    by_stream: bool
    beside_writes: bool

    def __str__(self) -> str:
        return ("stream" if self.by_stream else "segments") + (", beside writes" if self.beside_writes else "")


class Found(NamedTuple):
    """Seconds until the replica is live, and of processor time until then; the rows a second that were written.

    All but the last are not a number if it was not live after _SECONDS_MAX.
    """

    live_s: float
    replica_s: float
    leader_s: float
    written: float

    @property
    def both_s(self) -> float:
        """The processor time of both nodes."""
        return self.replica_s + self.leader_s


Figures = dict[Case, list[Found]]  # one for each size


async def _partitions(server: Server) -> list[dict[str, Any]]:
    try:
        told = await ask(Address("127.0.0.1", server.port), Opcode.PARTITIONS, {"name": _FEED}, timeout_s=60)
    except tailrace.TailraceError:  # it has not heard of the feed yet
        return []
    partitions: list[dict[str, Any]] = told["partitions"]
    return partitions


async def _seqs(server: Server) -> list[int]:
    """The last seq of each partition that the node has on its disk."""
    return [partition["durable_seq"] for partition in await _partitions(server)]


async def _until_live(leader: Server, replica: Server) -> float:
    """Seconds until the replica has what the leader had LAG_SECONDS before."""
    began = time.perf_counter()
    before: deque[tuple[float, list[int]]] = deque([(began, await _seqs(leader))])
    while (now := time.perf_counter()) - began < _SECONDS_MAX:
        while len(before) > 1 and now - before[1][0] >= LAG_SECONDS:
            before.popleft()
        held = await _seqs(replica)
        if held and all(have >= wanted for have, wanted in zip(held, before[0][1], strict=True)):
            return time.perf_counter() - began
        before.append((time.perf_counter(), await _seqs(leader)))
        await trio.sleep(_POLL_SECONDS)
    return math.nan


async def _catch_up(leader: Server, folder: Path, *, by_stream: bool) -> Found:
    """Starts an empty replica, until it is live."""
    bytes_min = f"replication.catch_up_bytes_min={'off' if by_stream else 0}"
    options = ("--replica-of", f"127.0.0.1:{leader.port}", "--set", bytes_min)
    with Server(folder, folder.with_suffix(".log"), options=options) as replica:
        used = [Processor.of(server.process.pid) for server in (replica, leader)]
        rows, began = sum(await _seqs(leader)), time.perf_counter()
        live_s = await _until_live(leader, replica)
        rate = (sum(await _seqs(leader)) - rows) / (time.perf_counter() - began)
        replica_s, leader_s = (
            sum(Processor.of(server.process.pid).since(before))
            for server, before in zip((replica, leader), used, strict=True)
        )
        found = Found(live_s, *((math.nan, math.nan) if math.isnan(live_s) else (replica_s, leader_s)), rate)
    shutil.rmtree(folder)
    return found


async def _limit(folder: Path, blocks: Blocks, partitions: int) -> float:
    """Rows a second that a node takes at level disk with a replica that is live."""
    with replicated(folder, folder.with_suffix(".log"), 1) as nodes:
        async with tailrace.connect(nodes.servers[0].address) as client:
            feed = await client.create_feed(_FEED, partitions=partitions, retention="history")
            await write_rows(feed, blocks, _LIMIT_ROWS // 10)
            await nodes.caught_up()
            rate = _LIMIT_ROWS / await write_rows(feed, blocks, _LIMIT_ROWS)
            await nodes.caught_up()
    shutil.rmtree(folder)
    return rate


class _Bench:
    """One run: the node's directory grows from size to size."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._partitions: int = args.partitions
        self._repeats: int = args.repeats
        self._folder = folder
        self._node, self._copy = folder / "node", folder / "copy"
        self._blocks = Blocks(args.partitions)
        self._rate = 0.0  # of the writes beside
        self._with_writes = not args.without_writes
        self._segment_bytes = 0

    async def run(self, sizes: list[int]) -> tuple[Figures, float, float]:
        """All cases of all sizes; the rate of the writes; and the rows from which a replica copies by default."""
        if self._with_writes:
            self._rate = await _limit(self._folder / "limit", self._blocks, self._partitions) / 2
        figures: Figures = {}
        for size in sizes:
            print(f"catch_up: {size:,} rows ...", file=sys.stderr, flush=True)
            found: Figures = {}
            for _ in range(self._repeats):
                await self._alone(size, found)
            for _ in range(self._repeats if self._with_writes else 0):
                for by_stream in (False, True):
                    found.setdefault(Case(by_stream, True), []).append(await self._beside_writes(by_stream))
            for case, several in found.items():
                figures.setdefault(case, []).append(Found(*map(median, zip(*several, strict=True))))
        bytes_min = Replication().catch_up_bytes_min or 0
        return figures, self._rate, bytes_min * self._partitions / (self._segment_bytes / sizes[-1])

    async def _alone(self, size: int, found: Figures) -> None:
        """Fills the node up to ``size``, and measures both ways while nothing is written."""
        with Server(self._node, self._folder / "log") as leader:
            async with tailrace.connect(leader.address) as client:
                feed = await client.create_feed(_FEED, partitions=self._partitions, retention="history")
                await write_rows(feed, self._blocks, size - sum(await _seqs(leader)))
                await flush(leader, _FEED)
                await at_rest(client, leader, 1.5)
                told = await _partitions(leader)
                self._segment_bytes = sum(partition["segment_bytes"] for partition in told)
            for by_stream in (False, True):
                caught_up = await _catch_up(leader, self._folder / "replica", by_stream=by_stream)
                found.setdefault(Case(by_stream, False), []).append(caught_up)
            leader.stop()

    async def _beside_writes(self, by_stream: bool) -> Found:
        """On a copy of the node's directory, so that the next case finds the same rows."""
        shutil.copytree(self._node, self._copy, copy_function=_copy_file)
        with Server(self._copy, self._folder / "log") as leader:
            async with tailrace.connect(leader.address) as client, trio.open_nursery() as nursery:
                nursery.start_soon(write_paced, client.feed(_FEED), self._blocks, self._rate)
                await trio.sleep(1.0)
                found = await _catch_up(leader, self._folder / "replica", by_stream=by_stream)
                nursery.cancel_scope.cancel()
        shutil.rmtree(self._copy)
        return found


def _copy_file(source: str, target: str) -> None:
    """Segments never change, so the copies share them."""
    if source.endswith(".seg"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _show(sizes: list[int], figures: Figures) -> None:
    cases = list(figures)
    markdown(
        "Seconds until an empty replica is live",
        ("rows", *map(str, cases)),
        [(f"{size:,}", *(_seconds(figures[case][at].live_s) for case in cases)) for at, size in enumerate(sizes)],
    )
    markdown(
        "Seconds of processor time until then: replica + leader",
        ("rows", *map(str, cases)),
        [
            (
                f"{size:,}",
                *(f"{figures[case][at].replica_s:.2f} + {figures[case][at].leader_s:.2f}" for case in cases),
            )
            for at, size in enumerate(sizes)
        ],
    )


def _seconds(value: float) -> str:
    return f"not in {_SECONDS_MAX:g}" if math.isnan(value) else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="sizes, each larger than the last")
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--without-writes", action="store_true", help="only while nothing is written")
    parser.add_argument("--plots", type=Path, help="draw the curves into this folder")
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    args = parser.parse_args()
    stolen = Stolen()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as folder:
        figures, rate, copies_from = trio.run(_Bench(args, Path(folder)).run, args.rows)
    _show(args.rows, figures)
    written = [found.written for case, several in figures.items() if case.beside_writes for found in several]
    if written:
        print(f"\nrows/s written beside: half of the limit is {rate:,.0f}; {median(written):,.0f} came")
    print(f"by default a replica copies segments from {copies_from:,.0f} rows on")
    print(f"taken by the machine's host for others: {stolen.share:.1%}")
    if args.plots is not None:
        from _replicas.plots import draw  # matplotlib is not needed otherwise

        print(f"catch_up: {draw(args.plots, args.rows, figures, copies_from)}", file=sys.stderr)


if __name__ == "__main__":
    main()
