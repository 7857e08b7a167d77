"""What replication by segments costs and saves: a feed in mode `segment` against one in mode `stream`.

    python bench/segment_mode.py [--rows 4000000] [--seconds 12] [--repeats 1] [--replicas 1] [--quick] [--folder DIR]

A leader and its replica are `tailrace serve` in processes of their own, with their default settings. A feed of 8
partitions, a history, gets rows of 16 + 100 bytes that do not compress, at level disk, in three ways:

    at the limit    --rows of them in blocks of 1,000 rows, as fast as the leader takes them
    through a writer    10,000 rows a second for --seconds, one by one; the SDK makes blocks of those of 5 ms
    single blocks   2,000 rows a second for --seconds, each in a block of its own

Each is run twice in each mode, on fresh nodes. The first run tells the ingest, and processor time and memory of both
nodes, until all rows are in segments on both and nothing is compacted any more; processor time includes compactions.
The second one tells the bytes between the nodes, until the same moment, by a relay that counts both directions; and the
delay of a row from its acknowledgement by the leader until a consumer on the replica has it, of 40 rows a second that
are written singly beside the others. Memory is RssAnon at most; a node's compactions count, if they run then.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median

import trio

import tailrace
from _replicas.blocks import BLOCK_ROWS, ROW_BYTES, VALUE_BYTES, Blocks, write_rows
from _replicas.nodes import Nodes, flush
from _replicas.taker import MARK
from _report import markdown, number, p50, p99
from _server import Processor, Server, Stolen, Watch, at_rest
from _streams.processes import Helper

_MODES = ("stream", "segment")
_PARTITIONS = 8
_ROWS_PER_SECOND = 10_000
_BLOCKS_PER_SECOND = 2_000
_TICK_SECONDS = 0.005
_MARK_SECONDS = 0.025
_REST_SECONDS = 1.5
# Each poll takes half a millisecond of the replica's processor time, and 200 a second would be counted as replication.
_POLL_SECONDS = 0.25
_RELAY, _TAKER = (str(Path(__file__).with_name("_replicas") / name) for name in ("relay.py", "taker.py"))

# Writes to the feed; returns the rows, and the seconds until all were acknowledged.
_Load = Callable[[tailrace.Feed], Awaitable[tuple[int, float]]]
_Figures = dict[str, float]

# Figures of OpenSearch's proposal for its limit, segment to document replication, by what they are.
_THEIRS = {
    "ingest, rows/s": "1.57",
    "replica's processor time, µs a row": "0.55 to 0.6",
    "replica's memory at most, MiB": "0.55 to 0.6",
    "bytes between the nodes, to the rows' bytes": "1.8",
}


class _Relay(Helper):
    """A relay to a port of this machine, in a process of its own."""

    def __init__(self, port: int) -> None:
        super().__init__(_RELAY, port)
        self.port = int(self.line().removeprefix("ready "))

    def __enter__(self) -> _Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def nbytes(self) -> int:
        """The bytes that it has relayed so far."""
        self.say("bytes")
        return int(self.line())


class _Pair:
    """A leader and its replicas, of which the last one may be behind a relay."""

    def __init__(self, servers: list[Server], relay: _Relay | None) -> None:
        self.leader, *_, self.replica = servers
        self.servers = servers
        self.relay = relay
        self.caught_up = partial(Nodes(servers).caught_up, _POLL_SECONDS)


@contextlib.contextmanager
def _pair(folder: Path, replicas: int, *, counted: bool) -> Iterator[_Pair]:
    folder.mkdir()
    log = folder / "log"
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Server(folder / "leader", log))]
        relay = stack.enter_context(_Relay(servers[0].port)) if counted else None
        for count in range(replicas):
            port = relay.port if relay is not None and count == replicas - 1 else servers[0].port
            options = ("--replica-of", f"127.0.0.1:{port}")
            servers.append(stack.enter_context(Server(folder / f"replica{count}", log, options=options)))
        yield _Pair(servers, relay)
        for server in reversed(servers):
            server.stop()


async def _at_rest(pair: _Pair) -> None:
    """Returns once all rows are in segments on all nodes, and nothing is compacted any more."""
    await flush(pair.leader, "bench")
    await pair.caught_up()
    for server in pair.servers:
        await flush(server, "bench")
    for server in pair.servers:
        async with tailrace.connect(server.address, state="follower" if server is not pair.leader else "leader") as one:
            await at_rest(one, server, _REST_SECONDS)
    await pair.caught_up()  # segments that the leader has compacted meanwhile take the place of others there


async def _costs(pair: _Pair, feed: tailrace.Feed, load: _Load) -> _Figures:
    """Ingest, processor time and memory."""
    before = [Processor.of(server.process.pid) for server in (pair.leader, pair.replica)]
    with Watch(pair.leader) as leader, Watch(pair.replica) as replica:
        rows, seconds = await load(feed)
        await _at_rest(pair)
    found: _Figures = {"ingest, rows/s": rows / seconds}
    for name, server, watch, at_first in (
        ("replica's", pair.replica, replica, before[1]),
        ("leader's", pair.leader, leader, before[0]),
    ):
        used = Processor.of(server.process.pid).since(at_first)
        found[f"{name} processor time, µs a row"] = sum(used) / rows * 1e6
        found[f"{name} time in the system, µs a row"] = used.system / rows * 1e6
        found[f"{name} memory at most, MiB"] = max(sample.node + sample.compactions for sample in watch.samples) / 2**20
    return found


async def _delays(pair: _Pair, feed: tailrace.Feed, load: _Load) -> _Figures:
    """The bytes between the nodes, and how long after its acknowledgement a row can be read on the replica."""
    assert pair.relay is not None
    before = pair.relay.nbytes()
    taker = Helper(_TAKER, pair.replica.address, "bench", "disk", "follower", MARK.decode())
    try:
        assert taker.line() == "ready"
        async with tailrace.connect(pair.leader.address) as other, _marks(other.feed("bench")) as acknowledged:
            rows, _ = await load(feed)
        await _at_rest(pair)
        nbytes = pair.relay.nbytes() - before
        lines = [taker.line().split() for _ in acknowledged]
    finally:
        taker.process.kill()
        taker.process.communicate()
    delays = [max(int(at) - acknowledged[mark], 0) / 1e6 for mark, at in lines]
    return {
        "bytes between the nodes, to the rows' bytes": nbytes / (rows * ROW_BYTES),
        "delay p50, ms": p50(delays),
        "delay p99, ms": p99(delays),
    }


@asynccontextmanager
async def _marks(feed: tailrace.Feed) -> AsyncIterator[dict[str, int]]:
    """Writes marked rows until its body ends; gives the moment at which each was acknowledged."""
    acknowledged: dict[str, int] = {}
    ended = trio.Event()

    async def write() -> None:
        while not ended.is_set():
            mark = b"%s%09d" % (MARK, len(acknowledged))
            await feed.put(mark, mark)
            acknowledged[mark.decode()] = time.monotonic_ns()
            await trio.sleep(_MARK_SECONDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        yield acknowledged
        ended.set()


async def _limit(blocks: Blocks, rows: int, feed: tailrace.Feed) -> tuple[int, float]:
    return rows, await write_rows(feed, blocks, rows)


async def _paced(rate: int, batch_rows: int, seconds: float, feed: tailrace.Feed) -> tuple[int, float]:
    """Rows one by one. The writer makes blocks of ``batch_rows``, or of fewer, and does not wait for their answers."""
    values = [os.urandom(VALUE_BYTES) for _ in range(int(rate * seconds) + 1)]  # none comes twice: they do not compress
    began, rows = time.perf_counter(), 0
    async with feed.writer(batch_rows=batch_rows) as writer:
        while (passed := time.perf_counter() - began) < seconds:
            while rows < int(passed * rate):
                await writer.put(b"key-%012d" % rows, values[rows])
                rows += 1
            await trio.sleep(_TICK_SECONDS)
    return rows, time.perf_counter() - began


async def _once(folder: Path, mode: str, load: _Load, replicas: int) -> _Figures:
    """All figures of a load in a mode."""
    found: _Figures = {}
    for name, measure in (("costs", _costs), ("delays", _delays)):
        with _pair(folder / f"{name} {mode}", replicas, counted=measure is _delays) as pair:
            async with tailrace.connect(pair.leader.address) as client:
                feed = await client.create_feed("bench", partitions=_PARTITIONS, retention="history", replication=mode)
                await feed.put(b"first", b"")  # the replica has heard of the feed when it has this
                await _at_rest(pair)
                found |= await measure(pair, feed, load)
    return found


def _ratio(segment: float, stream: float) -> str:
    # A row that can be read before its writer has the answer has no delay.
    return number(segment / stream) if stream else ""


def _show(title: str, theirs: dict[str, str], found: dict[str, list[_Figures]]) -> None:
    stream, segment = ({name: median(one[name] for one in found[mode]) for name in found[mode][0]} for mode in _MODES)
    markdown(
        title,
        ("", "stream", "segment", "segment / stream", "OpenSearch's proposal"),
        [
            (name, number(value), number(segment[name]), _ratio(segment[name], value), theirs.get(name, ""))
            for name, value in stream.items()
        ],
    )


async def _measure(args: argparse.Namespace, folder: Path) -> None:
    loads: dict[str, _Load] = {
        f"At the limit, {args.rows:,} rows in blocks of {BLOCK_ROWS:,}": partial(
            _limit, Blocks(_PARTITIONS), args.rows
        ),
        f"{_ROWS_PER_SECOND:,} rows a second for {args.seconds:g} s, one by one through a writer": partial(
            _paced, _ROWS_PER_SECOND, BLOCK_ROWS, args.seconds
        ),
        f"{_BLOCKS_PER_SECOND:,} blocks of one row a second for {args.seconds:g} s": partial(
            _paced, _BLOCKS_PER_SECOND, 1, args.seconds
        ),
    }
    for count, (title, load) in enumerate(loads.items()):
        found: dict[str, list[_Figures]] = {mode: [] for mode in _MODES}
        for repeat in range(args.repeats):
            for mode in _MODES:
                print(f"segment_mode: {title}, {mode} ...", file=sys.stderr, flush=True)
                place = folder / f"{count} {repeat} {mode}"
                place.mkdir()
                found[mode].append(await _once(place, mode, load, args.replicas))
        _show(title, {} if count else _THEIRS, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, and half of the seconds")
    parser.add_argument("--folder", help="where the data lies meanwhile; the system's temporary folder by default")
    args = parser.parse_args()
    if args.quick:
        args.rows //= 10
        args.seconds /= 2
    stolen = Stolen()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=args.folder) as name:
        trio.run(_measure, args, Path(name))
    print(f"\ntaken by the machine's host for others: {stolen.share:.1%}")


if __name__ == "__main__":
    main()
