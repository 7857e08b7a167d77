"""Single writes at level quorum, beside etcd's put: one at a time, and of many clients at once.

Both have three members on this machine, each write is on the disks of two before it is answered, and the clients of
both are tasks of this process. The two take turns.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

import tailrace
from _replicas.etcd import Etcd, etcd
from _replicas.nodes import a_set
from _report import Line, p50, p99

VALUE_BYTES = 100
CLIENTS = 32
KEYS = 10_000

_Put = Callable[[bytes, bytes], Awaitable[object]]


async def latency(folder: Path, log: Path, writes: int, repeats: int) -> list[Line]:
    """``writes`` of each kind and repeat; percentiles are of all repeats together."""
    found: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    (folder / "etcd").mkdir()
    with etcd(folder / "etcd", log) as port, a_set(folder / "set", log) as nodes:
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(tailrace.connect(nodes.url))
            await client.create_feed("bench", partitions=4)
            theirs = [await stack.enter_async_context(Etcd(port)) for _ in range(CLIENTS)]
            ours = [
                (await stack.enter_async_context(tailrace.connect(nodes.url))).feed("bench") for _ in range(CLIENTS)
            ]
            puts: dict[str, list[_Put]] = {
                "etcd put": [other.put for other in theirs],
                "quorum put": [_at_quorum(one) for one in ours],
            }
            for several in puts.values():
                await _many(several, CLIENTS)  # what a first request of a connection costs is no latency
            for _ in range(repeats):
                for name, several in puts.items():
                    found.setdefault(f"{name}, one client", []).extend(await _one(several[0], writes))
                found.setdefault("etcd: a read of one member, one client", []).extend(
                    await _one(lambda key, _: theirs[0].look(key), writes)
                )
                for name, several in puts.items():
                    begin = time.perf_counter()
                    delays = await _many(several, 4 * writes)
                    rates.setdefault(name, []).append(len(delays) / (time.perf_counter() - begin))
                    found.setdefault(f"{name}, {CLIENTS} clients", []).extend(delays)
    return _lines(found, rates)


def _at_quorum(feed: tailrace.Feed) -> _Put:
    return lambda key, value: feed.put(key, value, level="quorum")


async def _one(put: _Put, writes: int) -> list[float]:
    """Milliseconds of each of so many writes, one after the other."""
    delays = []
    for number in range(writes):
        value = os.urandom(VALUE_BYTES)
        begin = time.perf_counter()
        await put(b"key-%012d" % (number % KEYS), value)
        delays.append((time.perf_counter() - begin) * 1000)
    return delays


async def _many(puts: list[_Put], writes: int) -> list[float]:
    """Likewise, by several clients at once."""
    delays: list[float] = []

    async def work(put: _Put) -> None:
        delays.extend(await _one(put, writes // len(puts)))

    async with trio.open_nursery() as nursery:
        for put in puts:
            nursery.start_soon(work, put)
    return delays


def _lines(found: dict[str, list[float]], rates: dict[str, list[float]]) -> list[Line]:
    lines = []
    for name, delays in found.items():
        lines += [Line(f"{name}: p50", p50(delays), "ms"), Line(f"{name}: p99", p99(delays), "ms")]
    for clients in ("one client", f"{CLIENTS} clients"):
        ours, theirs = found[f"quorum put, {clients}"], found[f"etcd put, {clients}"]
        lines.append(Line(f"quorum put to etcd put, {clients}: p50", p50(ours) / p50(theirs), "x", most=1.0))
        lines.append(Line(f"quorum put to etcd put, {clients}: p99", p99(ours) / p99(theirs), "x", most=1.0))
    return lines + [Line(f"{name}, {CLIENTS} clients", p50(several), "writes/s") for name, several in rates.items()]
