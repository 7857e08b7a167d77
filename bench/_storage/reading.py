"""Reading what is on disk: by key, by a local reader, by a consumer over TCP. The files are in the page cache."""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Iterator
from pathlib import Path

import tailrace
from _report import Line, p50, p99
from _server import Server
from _storage.data import Rows
from _storage.ingest import FEED
from tailrace.block import Block
from tailrace.consuming.events import Mutations
from tailrace_server.config import Config
from tailrace_server.journal import lock_directory
from tailrace_server.node.node import Node
from tailrace_server.node.start import recover
from tailrace_server.runtime.host import Host
from tailrace_server.segment import NotCached, Segment
from tailrace_server.serving.lookup import Lookup

GETS = 2_000
_READ_BYTES = 1024 * 1024
# What the consumer's own decoding is measured on.
_DECODED_ROWS = 1_000_000


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Node]:
    """A node over the directory in this process, which serves nobody; stopped cleanly afterwards."""
    host = Host()
    lock = lock_directory(host.disk, str(folder))
    try:
        node = recover(Config(str(folder), http=None, ws=None), host)
        gc.collect()
        gc.freeze()
        yield node
        node.stop()
    finally:
        lock.close()


def get_us(node: Node, keys: list[bytes]) -> list[float]:
    """Microseconds of each look-up in the node, of those of ``keys`` that are not in a write queue."""
    feed = node.feeds.named(FEED)
    for partition in feed.partitions:
        partition.keys.catch_up(partition.tree, lambda: False)
    times: list[float] = []
    for key in keys:
        partition = feed.partition_of(key)
        if partition.keys.find(partition.tree, key) is not None:
            continue
        begin = time.perf_counter_ns()
        lookup = Lookup([key], [partition])
        _look_up(lookup)
        times.append((time.perf_counter_ns() - begin) / 1000)
        assert lookup.rows.values[0], "a key that was written is not found"
    return times


def _look_up(lookup: Lookup) -> None:
    """To its end, with what is not in memory read here."""
    while True:
        try:
            lookup.step(lambda: False)
        except NotCached as missing:
            missing.load()
        else:
            return


async def round_trips_us(client: tailrace.Client, keys: list[bytes]) -> list[float]:
    """Microseconds of each ``get``, one at a time, whether the key is flushed or not."""
    feed = client.feed(FEED)
    times: list[float] = []
    for key in keys:
        begin = time.perf_counter_ns()
        assert await feed.get(key) is not None
        times.append((time.perf_counter_ns() - begin) / 1000)
    return times


def local(node: Node) -> tuple[list[Line], list[bytes]]:
    """Reads every segment, a MiB at a time, and takes keys and values out; and some of the blocks as bytes."""
    segments = [segment for partition in node.feeds.partitions() for segment in partition.chain.segments]
    rows = nbytes = 0
    sample: list[bytes] = []
    begin = time.perf_counter()
    for block in _blocks(segments):
        mutations = Mutations(block)
        mutations.keys(), mutations.values()
        rows, nbytes = rows + block.rows, nbytes + block.nbytes
    seconds = time.perf_counter() - begin
    sampled = 0
    for block in _blocks(segments):
        sample.append(block.tobytes())
        sampled += block.rows
        if sampled >= _DECODED_ROWS:
            break
    return [
        Line(f"local reader, keys and values of {rows:,} rows", rows / seconds, "rows/s", least=1_000_000),
        Line("the same in bytes", nbytes / seconds / 2**20, "MiB/s"),
    ], sample


def _blocks(segments: list[Segment]) -> Iterator[Block]:
    for segment in segments:
        index = 0
        while index < segment.blocks:
            blocks, index = segment.read_blocks(index, _READ_BYTES)
            yield from blocks


def decoding_rate(sample: list[bytes]) -> float:
    """Rows a second of what a consumer does with blocks that are there: checks them, takes keys and values out."""
    rates: list[float] = []
    for _ in range(3):
        rows = 0
        begin = time.perf_counter()
        for data in sample:
            mutations = Mutations(Block.parse(data))
            mutations.keys(), mutations.values()
            rows += len(mutations)
        rates.append(rows / (time.perf_counter() - begin))
    return p50(rates)


async def stream(client: tailrace.Client, *, decode: bool) -> tuple[int, float]:
    """One consumer reads the whole feed: its rows, and how many a second."""
    rows = 0
    begin = time.perf_counter()
    async with client.feed(FEED).consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                if decode:
                    event.keys(), event.values()
                rows += len(event)
    return rows, rows / (time.perf_counter() - begin)


async def reading(folder: Path, log: Path, rows: Rows) -> list[Line]:
    """All of it, over what ``folder`` holds."""
    with opened(folder) as node:
        times = get_us(node, rows.written_keys(GETS))
        segments = sum(len(partition.chain.segments) for partition in node.feeds.partitions())
        lines, sample = local(node)
    random.shuffle(sample)
    decoding = decoding_rate(sample)
    with Server(folder, log) as server:
        async with tailrace.connect(server.address) as client:
            await round_trips_us(client, rows.written_keys(GETS // 10))  # the by-key index is level then
            trips = await round_trips_us(client, rows.written_keys(GETS))
            plain = p50([(await stream(client, decode=False))[1] for _ in range(3)])
            node_cpu, own_cpu, streamed = server.cpu_seconds(), time.process_time(), 0
            rates = []
            for _ in range(3):
                count, rate = await stream(client, decode=True)
                rates.append(rate)
                streamed += count
            node_cpu, own_cpu = server.cpu_seconds() - node_cpu, time.process_time() - own_cpu
        server.stop()
    return [
        Line(f"get of a flushed key in the node, {segments} segments, p50", p50(times), "µs", most=300),
        Line("get of a flushed key in the node, p99", p99(times), "µs"),
        Line("get over TCP, p50", p50(trips), "µs"),
        *lines,
        Line("a consumer's decoding alone", decoding, "rows/s"),
        Line("one consumer over TCP, keys and values taken out", p50(rates), "rows/s"),
        Line("processor time of the node for it", node_cpu * 1e6 / streamed, "µs/row"),
        Line("processor time of the consumer for it", own_cpu * 1e6 / streamed, "µs/row"),
        Line("one consumer over TCP, blocks as they come", plain, "rows/s"),
        Line("the stream as it comes / decoding alone", plain / decoding, least=1.0),
    ]
