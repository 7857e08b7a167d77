"""Barriers: of an idle feed of 1,024 partitions, in rounds in which few have news, and beside a stream of 5 GB.

idle      a barrier after the other, of a consumer of every partition
rounds    a write to each of three partitions, and the end of the round that delivers them, for a feed of 1,024
          partitions and one of three, in turns of 50
hot       one partition's segments, 5 GB of them and not in the page cache, go to a consumer that takes their columns
          (sink.py); meanwhile another one writes to the partitions beside, and waits for a barrier of its own
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import trio

import tailrace
from _report import Line, p50, p99
from _server import Server, at_rest
from _streams.processes import helper
from tailrace.model.hashing import key_hash, partition_of_hash

PARTITIONS = 1_024
NEWS = 3
_VALUE = os.urandom(100)
_TURN = 50
# As fast as the disk takes them: a row of this size costs nearly nothing but its bytes.
_HOT_VALUE_BYTES = 8_000
_HOT_BATCH_ROWS = 1_000
_HOT_PARTITIONS = 16
# The producer of the partitions beside: rather often, but the node is not busy with it.
_PAUSE_SECONDS = 0.005
_ALONE = 500


async def idle(folder: Path, log: Path, barriers: int) -> list[Line]:
    """Milliseconds of barriers of a feed in which nothing happens."""
    with Server(folder, log) as server:
        async with tailrace.connect(server.address) as client:
            feed = await client.create_feed("idle", partitions=PARTITIONS)
            await feed.write([tailrace.Put(key, _VALUE) for key in _keys(PARTITIONS)])
            async with _followed(feed) as stream:
                await stream.barrier()
                times, cpu = [], server.cpu_seconds()
                for _ in range(barriers):
                    start = time.perf_counter()
                    await stream.barrier()
                    times.append((time.perf_counter() - start) * 1e3)
                cpu = (server.cpu_seconds() - cpu) / barriers * 1e3
        server.stop()
    return [
        Line(f"barrier, idle feed of {PARTITIONS:,} partitions: p50", p50(times), "ms", most=5.0),
        Line(f"barrier, idle feed of {PARTITIONS:,} partitions: p99", p99(times), "ms", most=5.0),
        Line("its processor time on the node", cpu, "ms"),
    ]


async def rounds(folder: Path, log: Path, count: int) -> list[Line]:
    """Processor time of the node, and time until the round's end, of ``count`` rounds of three partitions with news."""
    cpu: dict[int, list[float]] = {PARTITIONS: [], NEWS: []}
    times: dict[int, list[float]] = {PARTITIONS: [], NEWS: []}
    with Server(folder, log) as server:
        async with tailrace.connect(server.address) as client, contextlib.AsyncExitStack() as stack:
            feeds, streams = {}, {}
            for partitions in cpu:
                feeds[partitions] = feed = await client.create_feed(f"of-{partitions}", partitions=partitions)
                await feed.write([tailrace.Put(key, _VALUE) for key in _keys(partitions)])
                streams[partitions] = await stack.enter_async_context(feed.consume(since="now"))
            for turn in range(max(count // _TURN, 2)):
                for partitions, feed in feeds.items():
                    before = server.cpu_seconds()
                    found = await _rounds(feed, streams[partitions], partitions)
                    if turn:  # the first one pays for what is loaded once
                        cpu[partitions].append((server.cpu_seconds() - before) / _TURN * 1e6)
                        times[partitions] += found
        server.stop()
    of_many, of_few = (sum(cpu[partitions]) / len(cpu[partitions]) for partitions in (PARTITIONS, NEWS))
    return [
        Line(f"a round of {NEWS} of {PARTITIONS:,} partitions: p50", p50(times[PARTITIONS]), "µs"),
        Line(f"a round of {NEWS} of {NEWS} partitions: p50", p50(times[NEWS]), "µs"),
        Line("of many / of few: p50", p50(times[PARTITIONS]) / p50(times[NEWS]), most=1.1),
        Line(f"a round of {NEWS} of {PARTITIONS:,} partitions: processor time of the node", of_many, "µs"),
        Line(f"a round of {NEWS} of {NEWS} partitions: processor time of the node", of_few, "µs"),
        Line("of many / of few: processor time", of_many / of_few, most=1.1),
    ]


async def _rounds(feed: tailrace.Feed, stream: tailrace.Stream, partitions: int) -> list[float]:
    """Microseconds of each of a turn's rounds, from the write to the end of its last snapshot."""
    keys = _keys(partitions)[:: partitions // NEWS][:NEWS]
    puts = [tailrace.Put(key, _VALUE) for key in keys]
    times = []
    for _ in range(_TURN):
        start = time.perf_counter()
        await feed.write(puts)
        ends = 0
        while ends < NEWS:
            ends += isinstance(await anext(stream), tailrace.SnapshotEnd)
        times.append((time.perf_counter() - start) * 1e6)
    return times


async def hot(folder: Path, log: Path, nbytes: int) -> list[Line]:
    """Milliseconds of barriers while a partition with ``nbytes`` of values is streamed from disk."""
    rows = nbytes // _HOT_VALUE_BYTES
    with Server(folder, log) as server:
        async with tailrace.connect(server.address) as client:
            feed = await client.create_feed("hot", partitions=_HOT_PARTITIONS, retention="history")
            await _fill(feed, rows)
            await at_rest(client, server)
            _drop_from_cache(folder)
            alone, beside = _Barriers(feed), _Barriers(feed)
            await alone.run(lambda: len(alone.times) >= _ALONE)
            with helper("sink.py", server.port, "hot", rows) as sink:
                begin, read, cpu = time.monotonic(), server.read_bytes(), server.cpu_seconds()
                sink.say("go")
                await beside.run(sink.has_line)
                taken = int(sink.line())
                seconds, read, cpu = time.monotonic() - begin, server.read_bytes() - read, server.cpu_seconds() - cpu
        server.stop()
    return [
        Line("streamed from one partition", taken / 1e9, "GB"),
        Line("of it, read from the disk", read / 1e9, "GB"),
        Line("rate of that stream", taken / seconds / 1e6, "MB/s"),
        Line("the node, of one processor", cpu / seconds),
        Line("barriers of the partitions beside, alone: p50", p50(alone.times), "ms"),
        Line("barriers of the partitions beside, alone: p99", p99(alone.times), "ms"),
        Line("barriers meanwhile", len(beside.times)),
        Line("barriers of the partitions beside, meanwhile: p50", p50(beside.times), "ms"),
        Line("barriers of the partitions beside, meanwhile: p99", p99(beside.times), "ms", most=100.0),
        Line("barriers of the partitions beside, meanwhile: the longest", max(beside.times), "ms"),
    ]


class _Barriers:
    """Writes to the partitions beside the first one of ``feed``, each followed by a barrier of their consumer."""

    def __init__(self, feed: tailrace.Feed) -> None:
        self._feed = feed
        self.times: list[float] = []  # milliseconds

    async def run(self, done: Callable[[], bool]) -> None:
        """Until ``done()``."""
        keys = _keys(_HOT_PARTITIONS)[1:]
        async with _followed(self._feed, since="now", partitions=range(1, _HOT_PARTITIONS)) as stream:
            while not done():
                await self._feed.put(keys[len(self.times) % len(keys)], _VALUE, level="memory")
                start = time.perf_counter()
                await stream.barrier()
                self.times.append((time.perf_counter() - start) * 1e3)
                await trio.sleep(_PAUSE_SECONDS)


@contextlib.asynccontextmanager
async def _followed(feed: tailrace.Feed, **options: Any) -> AsyncIterator[tailrace.Stream]:
    """A stream whose events somebody asks for."""
    async with feed.consume(**options) as stream, trio.open_nursery() as nursery:

        async def read() -> None:
            async for _ in stream:
                pass

        nursery.start_soon(read)
        yield stream
        nursery.cancel_scope.cancel()


@functools.cache
def _keys(partitions: int) -> list[bytes]:
    """A key of each partition of a feed of so many."""
    found: dict[int, bytes] = {}
    for number in itertools.count():
        key = b"key-%012d" % number
        found.setdefault(partition_of_hash(key_hash(key), partitions), key)
        if len(found) == partitions:
            return [key for _, key in sorted(found.items())]
    raise AssertionError("there is always another number")


async def _fill(feed: tailrace.Feed, rows: int) -> None:
    """One key of the first partition, again and again: the feed keeps its history."""
    key = _keys(_HOT_PARTITIONS)[0]
    random = os.urandom(_HOT_VALUE_BYTES * _HOT_BATCH_ROWS)
    starts = range(0, len(random), _HOT_VALUE_BYTES)
    puts = [tailrace.Put(key, random[at : at + _HOT_VALUE_BYTES]) for at in starts]
    async with feed.writer() as writer:
        for at in range(0, rows, _HOT_BATCH_ROWS):
            await writer.write(puts[: rows - at])


def _drop_from_cache(folder: Path) -> None:
    """The system's page cache forgets the segments, which are fsynced."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_bytes(server: Server) -> int:
    return server.read_bytes()
