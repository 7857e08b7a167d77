"""``python taker.py URL FEED LEVEL [STATE PREFIX]``: consumes what a feed has after now, and says what it has got.

Prints "ready"; then each value that is marked, and behind it the monotonic nanoseconds at which it was delivered. STATE
is that of the node to read from, by default the leader; PREFIX is that of the keys that it asks for.
"""

from __future__ import annotations

import sys
import time

import trio

import tailrace

MARK = b"mark-"


async def run(url: str, feed: str, level: str, state: str = "leader", prefix: str = "") -> None:
    """Until it is ended."""
    async with (
        tailrace.connect(url, state=state) as client,
        client.feed(feed).consume(since="now", visibility=level, key_prefix=prefix.encode()) as stream,
    ):
        print("ready", flush=True)
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                for value in event.values():
                    if value is not None and value.startswith(MARK):
                        print(value.decode(), time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    trio.run(run, *sys.argv[1:])
