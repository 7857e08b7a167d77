"""A node with one feed of 16, 256 or 4,096 partitions, with the same rows in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import trio

import tailrace
from _growth.restarts import Restart, restart
from _growth.rows import Cost, Spent, catch_up, ingest, key_of
from _report import p50
from _server import Server

FEED = "grown"
PUTTERS = 64
_SETTLE_SECONDS = 3.0
# What a start has recovered is merged and looked at for seconds, if there are thousands of partitions.
_SETTLE_AFTER_START_SECONDS = 20.0
_VALUE = bytes(100)
_FLUSH_AGE_S = 5
_FLUSH_SECONDS_MAX = 60.0


class Partitions(NamedTuple):
    """What was found with so many partitions."""

    partitions: int
    start_s: float  # of an empty directory
    create_s: float
    memory: int  # bytes, of the node with the empty feed
    idle: float  # µs of the processor a second, with the empty feed
    put_us: float  # p50 of one put after the other
    put: Cost
    putters: Cost
    ingest: Cost
    memory_full: int
    catch_up: Cost
    killed: Restart
    stopped: Restart
    idle_full: float
    flush_us: float  # of the node's processor, for each partition
    flushes: float  # a second


async def grown(folder: Path, log: Path, partitions: int, rows: int, seconds: float) -> Partitions:
    """Measures a node in a new directory. ``seconds``: over which the processor at rest is looked at."""
    with Server(folder, log) as server:
        start_s = time.perf_counter() - server.started
        async with tailrace.connect(server.address) as client:
            begin = time.perf_counter()
            feed = await client.create_feed(FEED, partitions=partitions)
            create_s = time.perf_counter() - begin
            await feed.put(b"warm", _VALUE)
            idle = await idle_us(server, _SETTLE_SECONDS, seconds)
            memory = server.memory_bytes()
            times, put = await _one(server, feed, max(200, rows // 500))
            putters = await _many(server, feed, max(1_000, rows // 60))
            written = await ingest(server, feed, 0, rows)
            memory_full = server.memory_bytes()
            caught_up = await catch_up(server, feed, rows)
        found: dict[str, Restart] = {}
        for name, end in (("killed", Server.kill), ("stopped", Server.stop)):
            server, found[name] = await restart(server, end, folder, log, FEED, key_of(0))
        try:
            idle_full = await idle_us(server, _SETTLE_AFTER_START_SECONDS, seconds)
            options = ("--set", f"storage.flush_age_s={_FLUSH_AGE_S}")
            server, _ = await restart(server, Server.kill, folder, log, FEED, key_of(0), options)
            flush_us, flushes = await _flush_all(server, partitions)
        finally:
            server.stop()
    return Partitions(
        *(partitions, start_s, create_s, memory, idle, p50(times), put, putters, written, memory_full, caught_up),
        **found,
        idle_full=idle_full,
        flush_us=flush_us,
        flushes=flushes,
    )


async def idle_us(server: Server, settle: float, seconds: float) -> float:
    """Returns the µs of the processor that a node without work takes in a second, once it has had time to settle."""
    await trio.sleep(settle)
    cpu, begin = server.cpu_seconds(), time.monotonic()
    await trio.sleep(seconds)
    return (server.cpu_seconds() - cpu) / (time.monotonic() - begin) * 1e6


async def _flush_all(server: Server, partitions: int) -> tuple[float, float]:
    """Waits until all partitions are flushed; returns µs of the node's processor for each, and flushes a second."""
    async with tailrace.connect(server.address) as client:

        async def reached(count: int) -> int:
            """Returns how many flushes there were once there are so many, or after a time."""
            give_up_at = time.monotonic() + _FLUSH_SECONDS_MAX
            while True:
                found: int = (await client.status()).details["storage"]["flushes"]
                if found >= count or time.monotonic() > give_up_at:
                    return found
                await trio.sleep(0.1)

        first, cpu, begin = await reached(1), server.cpu_seconds(), time.monotonic()
        count = max(1, await reached(partitions) - first)
        return (server.cpu_seconds() - cpu) / count * 1e6, count / (time.monotonic() - begin)


async def _one(server: Server, feed: tailrace.Feed, count: int) -> tuple[list[float], Cost]:
    spent, times = Spent(server), []
    for number in range(count):
        begin = time.perf_counter_ns()
        await feed.put(b"one-%d" % number, _VALUE)
        times.append((time.perf_counter_ns() - begin) / 1000)
    return times, spent.of(count)


async def _many(server: Server, feed: tailrace.Feed, count: int) -> Cost:
    async def work(putter: int) -> None:
        for number in range(count // PUTTERS):
            await feed.put(b"many-%d-%d" % (putter, number), _VALUE)

    spent = Spent(server)
    async with trio.open_nursery() as nursery:
        for putter in range(PUTTERS):
            nursery.start_soon(work, putter)
    return spent.of(count // PUTTERS * PUTTERS)
