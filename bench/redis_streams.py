"""Tailrace against Redis Streams, interleaved in one run: durable ingest, catch-up, latency.

    python bench/redis_streams.py [--rows 200000] [--repeats 5] [--writes 200]

The latency of a relay on trio that only appends, syncs and sends (_relay.py) is the floor: no feed in three Python
processes can be below it.

Redis runs with `appendonly yes`, `appendfsync always`; redis-py with hiredis. Both servers are processes of their own
on loopback, with fresh data in the same temporary folder. 1,000 rows a batch, 16-byte keys, 100-byte values, one
producer, one consumer, one stream (a feed of one partition). Figures are medians; a ratio above 1 is in Tailrace's
favour, but for latencies. Exit code 1 where a target is missed.

Needs redis-server (Debian, Ubuntu: sudo apt install redis-server).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import redis
import trio
from rich.console import Console
from rich.table import Table

import tailrace
from _redis import free_port, redis_server, wait_for

BATCH_ROWS = 1000
KEY_BYTES, VALUE_BYTES = 16, 100
RELAY = str(Path(__file__).with_name("_relay.py"))
# What Tailrace's frame and block put around a row of this size.
RELAY_OVERHEAD_BYTES = 200


def sample(rows: int) -> list[list[tuple[bytes, bytes]]]:
    """Batches of rows with keys and values of fixed size."""
    made = [(b"key-%012d" % number, os.urandom(VALUE_BYTES)) for number in range(rows)]
    return [made[start : start + BATCH_ROWS] for start in range(0, rows, BATCH_ROWS)]


@contextlib.contextmanager
def tailrace_server(folder: Path) -> Iterator[int]:
    """A node of our own; gives its port."""
    port = free_port()
    program = str(Path(sys.executable).with_name("tailrace"))
    command = [program, "serve", "--data", str(folder), "--listen", f"127.0.0.1:{port}", "--http", "off", "--ws", "off"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(port)
            yield port
        finally:
            process.terminate()


def timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


# ---- ingest and catch-up ----


def redis_ingest(client: redis.Redis, stream: str, batches: list[list[tuple[bytes, bytes]]]) -> None:
    for batch in batches:
        pipeline = client.pipeline(transaction=False)
        for key, value in batch:
            pipeline.xadd(stream, {b"k": key, b"v": value})
        pipeline.execute()


def redis_catch_up(client: redis.Redis, stream: str, rows: int) -> None:
    last: bytes = b"0"
    seen = 0
    while seen < rows:
        ((_, entries),) = client.xread({stream: last}, count=BATCH_ROWS)
        for id, fields in entries:
            key, value = fields[b"k"], fields[b"v"]
            last = id
        seen += len(entries)
    assert (len(key), len(value)) == (KEY_BYTES, VALUE_BYTES)


async def tailrace_ingest(client: tailrace.Client, feed: str, batches: list[list[tailrace.Put]]) -> None:
    async with client.feed(feed).writer(batch_rows=BATCH_ROWS) as writer:
        for batch in batches:
            await writer.write(batch)


async def tailrace_catch_up(client: tailrace.Client, feed: str, rows: int, by: str) -> None:
    seen = 0
    async with client.feed(feed).consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                if by == "columns":
                    for row in zip(event.keys(), event.values(), strict=True):
                        key, value = row
                        seen += 1
                else:
                    for mutation in event:
                        key, value = mutation.key, mutation.value
                        seen += 1
    assert seen == rows
    assert (len(key), len(value or b"")) == (KEY_BYTES, VALUE_BYTES)


# ---- latency: the consumer is a process of its own, and both read the same clock ----


def consume_redis(port: int, stream: str, writes: int) -> None:
    client = redis.Redis(port=port)
    last: str | bytes = "$"
    print("ready", flush=True)
    for _ in range(writes):
        ((_, ((last, fields),)),) = client.xread({stream: last}, count=1, block=0)
        arrived = time.monotonic_ns()
        print(arrived - int(fields[b"v"]), flush=True)


async def consume_tailrace(port: int, feed: str, writes: int) -> None:
    async with (
        tailrace.connect(f"tailrace://127.0.0.1:{port}") as client,
        client.feed(feed).consume(since="now") as stream,
    ):
        print("ready", flush=True)
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                value = event.values()[0]
                arrived = time.monotonic_ns()
                print(arrived - int(value or 0), flush=True)
                writes -= 1
                if not writes:
                    return


@contextlib.contextmanager
def consumer(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A consumer in a process of its own, ready for the next message."""
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        try:
            yield process
        finally:
            process.terminate()


def delay(process: subprocess.Popen[str]) -> float:
    """Microseconds from a write's start to its delivery."""
    assert process.stdout is not None
    return int(process.stdout.readline()) / 1000


async def latencies(
    theirs: redis.Redis, redis_port: int, ours: tailrace.Client, port: int, name: str, writes: int, folder: Path
) -> dict[str, float]:
    """Medians over ``writes`` writes to each, taken in turns: what the disk and other users do meets all of them."""
    handle = ours.feed(name)
    found: dict[str, list[float]] = {"redis latency": [], "latency": [], "relay latency": []}
    with contextlib.ExitStack() as stack:
        relay_port = free_port()
        stack.enter_context(relay_server(relay_port, folder / f"relay-{name}"))
        at_relay = stack.enter_context(consumer(RELAY, "consume", str(relay_port), str(writes)))
        relay = (await trio.open_tcp_stream("127.0.0.1", relay_port)).socket
        stack.callback(relay.close)
        at_redis = stack.enter_context(consumer(__file__, "--consume-redis", str(redis_port), name, str(writes)))
        at_ours = stack.enter_context(consumer(__file__, "--consume-tailrace", str(port), name, str(writes)))
        for _ in range(writes):
            theirs.xadd(name, {b"k": b"k" * KEY_BYTES, b"v": stamp()})
            found["redis latency"].append(delay(at_redis))
            await handle.put(b"k" * KEY_BYTES, stamp())
            found["latency"].append(delay(at_ours))
            await relay.send(b"h" * RELAY_OVERHEAD_BYTES + stamp())
            found["relay latency"].append(delay(at_relay))
            await relay.recv(RELAY_OVERHEAD_BYTES)
    return {what: median(delays) for what, delays in found.items()}


@contextlib.contextmanager
def relay_server(port: int, path: Path) -> Iterator[None]:
    with subprocess.Popen([sys.executable, RELAY, "serve", str(port), str(path)]) as process:
        time.sleep(1)  # it takes two connections and no more, so nobody may look whether it listens
        try:
            yield
        finally:
            process.terminate()


def stamp() -> bytes:
    return b"%0*d" % (VALUE_BYTES, time.monotonic_ns())


# ---- the run ----


async def run(args: argparse.Namespace, folder: Path) -> bool:
    batches = sample(args.rows)
    puts = [[tailrace.Put(*row) for row in batch] for batch in batches]
    figures: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        figures.setdefault(name, []).append(value)

    (folder / "redis").mkdir()
    with redis_server(folder / "redis") as redis_port, tailrace_server(folder / "tailrace") as port:
        theirs = redis.Redis(port=redis_port)
        async with tailrace.connect(f"tailrace://127.0.0.1:{port}") as ours:
            for number in range(args.repeats):
                name = f"bench-{number}"
                await ours.create_feed(name, partitions=1)
                note("redis ingest", args.rows / timed(lambda name=name: redis_ingest(theirs, name, batches)))
                begin = time.perf_counter()
                await tailrace_ingest(ours, name, puts)
                note("ingest", args.rows / (time.perf_counter() - begin))
                note("redis catch-up", args.rows / timed(lambda name=name: redis_catch_up(theirs, name, args.rows)))
                for by in ("columns", "rows"):
                    begin = time.perf_counter()
                    await tailrace_catch_up(ours, name, args.rows, by)
                    note(f"catch-up by {by}", args.rows / (time.perf_counter() - begin))
                for what, value in (await latencies(theirs, redis_port, ours, port, name, args.writes, folder)).items():
                    note(what, value)
                await ours.drop_feed(name)
                theirs.delete(name)
    return report({name: median(values) for name, values in figures.items()}, args)


def report(figure: dict[str, float], args: argparse.Namespace) -> bool:
    table = Table(title=f"Tailrace and Redis Streams: medians of {args.repeats}, {args.rows:,} rows")
    for column in ("what", "Redis", "Tailrace", "ratio", "target", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    good = True
    for what, theirs, ours, target in (
        ("durable ingest, rows/s", "redis ingest", "ingest", 10.0),
        ("catch-up by columns, rows/s", "redis catch-up", "catch-up by columns", args.columns_target),
        ("catch-up by row objects, rows/s", "redis catch-up", "catch-up by rows", args.rows_target),
        ("latency p50, µs", "redis latency", "latency", -1.1),
        ("latency p50 of a bare relay on trio, µs", "redis latency", "relay latency", 0.0),
    ):
        ratio = figure[ours] / figure[theirs]
        met = ratio <= -target if target < 0 else ratio >= target
        good &= met or not target
        bound = "as found" if not target else f"{'<=' if target < 0 else '>='} {abs(target):g}"
        said = "" if not target else "met" if met else "missed"
        table.add_row(what, f"{figure[theirs]:,.0f}", f"{figure[ours]:,.0f}", f"{ratio:.2f}", bound, said)
    Console(width=110).print(table)
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--writes", type=int, default=200)
    parser.add_argument("--without-pyarrow", action="store_true", help="take columns without pyarrow and numpy")
    parser.add_argument("--consume-redis", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--consume-tailrace", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.consume_redis:
        port, stream, writes = args.consume_redis
        consume_redis(int(port), stream, int(writes))
        return
    if args.consume_tailrace:
        port, feed, writes = args.consume_tailrace
        trio.run(consume_tailrace, int(port), feed, int(writes))
        return
    args.columns_target, args.rows_target = (0.0, 0.0) if args.without_pyarrow else (8.0, 4.0)
    if args.without_pyarrow:
        sys.modules["pyarrow"] = sys.modules["numpy"] = None  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        good = trio.run(run, args, Path(name))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
