"""1,000 streams without news: what they cost the node, on 1,000 connections and on one.

Both sides go on saying NOOP, the SDK's consumers each 5 seconds, the node each 10: that is what there is to pay for. A
node that nobody is connected to is measured beside them.
"""

from __future__ import annotations

import time
from pathlib import Path

import trio

import tailrace
from _report import Line
from _server import Server
from _streams.processes import helper

STREAMS = 1_000
# Of one processor: what an operator would not notice.
_CPU_MS_MAX = 20.0


async def idle_streams(folder: Path, log: Path, seconds: float) -> list[Line]:
    """Milliseconds of the node's processor a second, each over so many seconds."""
    with Server(folder, log) as server:
        async with tailrace.connect(server.address) as client:
            feed = await client.create_feed("idle", partitions=STREAMS)
            await feed.put(b"k", b"v")
            nobody = await _cpu_ms(server, seconds)
            with helper("idlers.py", server.port, "idle", 1, STREAMS):
                one = await _cpu_ms(server, seconds)
            with helper("idlers.py", server.port, "idle", STREAMS, 1):
                many = await _cpu_ms(server, seconds)
                connections = len((await client.status()).details["connections"])
        server.stop()
    assert connections > STREAMS, "every one of them is still there"
    return [
        Line("a node that nobody reads from", nobody, "ms/s"),
        Line(f"{STREAMS:,} idle streams on one connection", one, "ms/s", most=_CPU_MS_MAX),
        Line(f"{STREAMS:,} idle streams on as many connections", many, "ms/s", most=_CPU_MS_MAX),
    ]


async def _cpu_ms(server: Server, seconds: float) -> float:
    await trio.sleep(1.0)
    cpu, begin = server.cpu_seconds(), time.monotonic()
    await trio.sleep(seconds)
    return (server.cpu_seconds() - cpu) / (time.monotonic() - begin) * 1e3
