"""How long a node takes to start again: until it has answered a client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import tailrace
from _server import Server


class Restart(NamedTuple):
    """Seconds until the first answer, and of the node's processor."""

    wall: float
    cpu: float


async def restart(
    server: Server,
    end: Callable[[Server], None],
    folder: Path,
    log: Path,
    feed: str,
    key: bytes,
    options: Sequence[str] = (),
) -> tuple[Server, Restart]:
    """Ends the node by ``end`` and starts it again. Returns the new one, and the time until it has found a key.

    ``options``: more of its command line.
    """
    end(server)
    again = Server(folder, log, options=options)
    async with tailrace.connect(again.address) as client:
        assert await client.feed(feed).get(key) is not None, "a row that was acknowledged is not found"
    return again, Restart(time.perf_counter() - again.started, again.cpu_seconds())
