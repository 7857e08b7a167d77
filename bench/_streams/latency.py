"""From a write to its delivery at levels disk and memory, beside Redis Streams: idle, and at half of the ingest limit.

idle    one write at a time, in turns: Redis (appendfsync always), level disk, Redis (appendfsync no), level memory
limit   batches of 100 rows as fast as one producer gets them through, with the consumer that latencies are taken at
load    such batches at a given rate, whether or not those before have been answered; the last row of each is timed,
        from the moment at which it was due

One producer, one stream (a feed of one partition), one consumer in a process of its own (receiver.py). The rates are
half of Redis's limit for both, so that both carry the same, and half of its own for Tailrace, which is more. A p99 of
Tailrace at the latter is compared with the same one of Redis at half of Redis's.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

import redis
import trio

import tailrace
from _peers.servers import Redis
from _report import Line, p50, p99
from _server import Server
from _streams.processes import Helper, helper
from _streams.receiver import VALUE_BYTES, stamp

BATCH_ROWS = 100
_KEY = b"key-%012d"
_KEYS = 100_000
LEVELS = {"disk": "always", "memory": "no"}  # and what comes nearest to them in Redis
_IDLE_RATIO_MAX = 1.1


class _Target(Protocol):
    """Something that takes writes, and a consumer at its other end."""

    receiver: Helper

    async def put(self, value: bytes) -> None: ...
    async def write(self, batch: list[tailrace.Put]) -> None: ...
    async def settle(self) -> None: ...


class _Redis:
    """A stream of a Redis. Its client waits for the answers to each batch."""

    def __init__(self, client: redis.Redis, stream: str, receiver: Helper) -> None:
        self._client, self._stream, self.receiver = client, stream, receiver

    async def put(self, value: bytes) -> None:
        self._client.xadd(self._stream, {b"k": _KEY % 0, b"v": value})

    async def write(self, batch: list[tailrace.Put]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for put in batch:
            pipeline.xadd(self._stream, {b"k": put.key, b"v": put.value})
        pipeline.execute()

    async def settle(self) -> None:
        """Every write has been answered already."""


class _Tailrace:
    """A feed. Its writer goes on while batches have no answer."""

    def __init__(self, feed: tailrace.Feed, level: str, writer: tailrace.Writer, receiver: Helper) -> None:
        self._feed, self._level, self._writer, self.receiver = feed, level, writer, receiver

    async def put(self, value: bytes) -> None:
        await self._feed.put(_KEY % 0, value, level=self._level)

    async def write(self, batch: list[tailrace.Put]) -> None:
        await self._writer.write(batch)

    async def settle(self) -> None:
        await self._writer.flush()


class _Load(NamedTuple):
    """Rows a second that were asked for and that came, and the microseconds of each timed row."""

    asked: float
    came: float
    delays: list[float]


class _Found:
    """Of each repeat, by system and level."""

    def __init__(self) -> None:
        self.idle: dict[tuple[str, str], list[list[float]]] = {}
        self.limit: dict[tuple[str, str], list[float]] = {}
        self.load: dict[tuple[str, str], list[_Load]] = {}
        self.own: dict[str, list[_Load]] = {}


async def latency(folder: Path, log: Path, *, writes: int, seconds: float, repeats: int) -> list[Line]:
    """Medians of ``repeats``, each with ``writes`` single writes of a kind and ``seconds`` of each load."""
    found = _Found()
    batch = [tailrace.Put(_KEY % number, os.urandom(VALUE_BYTES)) for number in range(_KEYS)]
    async with _servers(folder, log) as targets:
        for number in range(repeats):
            async with targets(f"idle-{number}") as pairs:
                for kind, delays in (await _idle(pairs, writes)).items():
                    found.idle.setdefault(kind, []).append(delays)
            for level in LEVELS:
                async with targets(f"load-{level}-{number}") as pairs:
                    theirs, ours = pairs["Redis", level], pairs["Tailrace", level]
                    limits = {"Redis": await _limit(theirs, batch, seconds / 2)}
                    limits["Tailrace"] = await _limit(ours, batch, seconds / 2)
                    for system, limit in limits.items():
                        found.limit.setdefault((system, level), []).append(limit)
                    for system in limits:
                        load = await _load(pairs[system, level], batch, limits["Redis"] / 2, seconds)
                        found.load.setdefault((system, level), []).append(load)
                    own = await _load(ours, batch, limits["Tailrace"] / 2, seconds)
                    found.own.setdefault(level, []).append(own)
    return _lines(found)


_Pairs = dict[tuple[str, str], _Target]
_Make = Callable[[str], contextlib.AbstractAsyncContextManager[_Pairs]]


@contextlib.asynccontextmanager
async def _servers(
    folder: Path, log: Path
) -> AsyncIterator[Callable[[str], contextlib.AbstractAsyncContextManager[_Pairs]]]:
    """Two Redis, as they sync, and a node; gives what makes feeds, streams and consumers of a name."""
    with contextlib.ExitStack() as stack:
        redis_ports = {}
        for level, appendfsync in LEVELS.items():
            (folder / appendfsync).mkdir()
            one = stack.enter_context(Redis(folder / appendfsync, appendfsync))
            redis_ports[level] = one.port
        server = stack.enter_context(Server(folder / "node", log))
        async with tailrace.connect(server.address) as client:

            @contextlib.asynccontextmanager
            async def targets(name: str) -> AsyncIterator[_Pairs]:
                pairs: _Pairs = {}
                async with contextlib.AsyncExitStack() as inner:
                    for level, port in redis_ports.items():
                        theirs = redis.Redis(port=port)
                        inner.callback(theirs.delete, name)
                        receiver = inner.enter_context(helper("receiver.py", "redis", port, name))
                        pairs["Redis", level] = _Redis(theirs, name, receiver)
                        feed = await client.create_feed(f"{name}-{level}", partitions=1)
                        inner.push_async_callback(client.drop_feed, f"{name}-{level}")
                        receiver = inner.enter_context(
                            helper("receiver.py", "tailrace", server.port, f"{name}-{level}", level)
                        )
                        writer = await inner.enter_async_context(feed.writer(level=level, batch_rows=BATCH_ROWS))
                        pairs["Tailrace", level] = _Tailrace(feed, level, writer, receiver)
                    await trio.sleep(0.2)  # until Redis has the consumer's first XREAD
                    yield pairs

            yield targets


async def _idle(pairs: _Pairs, writes: int) -> dict[tuple[str, str], list[float]]:
    """Microseconds of each of so many writes, in turns, each begun when the one before has been delivered."""
    delays: dict[tuple[str, str], list[float]] = {kind: [] for kind in pairs}
    for _ in range(writes):
        for kind, target in pairs.items():
            await target.put(stamp(time.monotonic_ns()))
            delays[kind].append(int(target.receiver.line()) / 1000)
    return delays


def _batches(rows: list[tailrace.Put]) -> Iterator[list[tailrace.Put]]:
    while True:
        for at in range(0, len(rows), BATCH_ROWS):
            yield rows[at : at + BATCH_ROWS]


async def _limit(target: _Target, rows: list[tailrace.Put], seconds: float) -> float:
    """Rows a second, until the last one has been delivered."""
    begin = time.monotonic()
    count = 0
    for batch in _batches(rows):
        await target.write(batch)
        count += BATCH_ROWS
        if time.monotonic() - begin > seconds:
            break
    await target.settle()
    await target.put(stamp(time.monotonic_ns()))
    target.receiver.line()
    return count / (time.monotonic() - begin)


async def _load(target: _Target, rows: list[tailrace.Put], rate: float, seconds: float) -> _Load:
    """Batches at ``rate`` rows a second; the last row of each is timed.

    A batch that is due while the producer is still busy with the one before counts from when it was due.
    """
    interval_ns = int(BATCH_ROWS / rate * 1e9)
    begin = due = time.monotonic_ns()
    count = 0
    for batch in _batches(rows):
        now = time.monotonic_ns()
        if due > now:
            await trio.sleep((due - now) / 1e9)
            now = time.monotonic_ns()
            written = now
        else:
            written = due
        await target.write([*batch[:-1], tailrace.Put(batch[-1].key, stamp(written))])
        count += 1
        due += interval_ns
        if due - begin > seconds * 1e9:
            break
    await target.settle()
    delays = [int(target.receiver.line()) / 1000 for _ in range(count)]
    return _Load(rate, count * BATCH_ROWS / (time.monotonic_ns() - begin) * 1e9, delays)


def _lines(found: _Found) -> list[Line]:
    lines = []
    for level in LEVELS:
        theirs, ours = found.idle["Redis", level], found.idle["Tailrace", level]
        lines.append(_compared(f"level {level}, idle", "p50", p50, theirs, ours, most=_IDLE_RATIO_MAX))
        lines.append(_compared(f"level {level}, idle", "p99", p99, theirs, ours, most=_IDLE_RATIO_MAX))
    for level in LEVELS:
        lines += [
            Line(f"level {level}, ingest limit, {system}", median(found.limit[system, level]), "rows/s")
            for system in ("Redis", "Tailrace")
        ]
        at_theirs = found.load["Redis", level]
        rate = _rate(at_theirs)
        theirs = [load.delays for load in at_theirs]
        for loads, what in (
            (found.load["Tailrace", level], f"level {level}, both at {rate} rows/s"),
            (found.own[level], f"level {level}, Redis at {rate}, Tailrace at {_rate(found.own[level])} rows/s"),
        ):
            ours = [load.delays for load in loads]
            lines.append(_compared(what, "p50", p50, theirs, ours))
            lines.append(_compared(what, "p99", p99, theirs, ours, most=1.0))
    return lines


def _rate(loads: list[_Load]) -> str:
    return f"{median([load.came for load in loads]):,.0f}"


def _compared(
    what: str,
    name: str,
    of: Callable[[list[float]], float],
    theirs: list[list[float]],
    ours: list[list[float]],
    *,
    most: float | None = None,
) -> Line:
    """The ratio of Tailrace's to Redis's, each the median of the repeats, which are told too."""
    redis_us, tailrace_us = median([of(one) for one in theirs]), median([of(one) for one in ours])
    said = f"{what}: {name} of Redis {redis_us / 1000:,.2f} ms, Tailrace {tailrace_us / 1000:,.2f} ms; ratio"
    return Line(said, tailrace_us / redis_us, most=most)
