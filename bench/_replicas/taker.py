"""``python taker.py URL FEED LEVEL``: consumes what a feed has after now, and says what it has got.

Prints "ready"; then each value that is marked, and behind it the monotonic nanoseconds at which it was delivered.
"""

from __future__ import annotations

import sys
import time

import trio

import tailrace

MARK = b"mark-"


async def run(url: str, feed: str, level: str) -> None:
    """Until it is ended."""
    async with tailrace.connect(url) as client, client.feed(feed).consume(since="now", visibility=level) as stream:
        print("ready", flush=True)
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                for value in event.values():
                    if value is not None and value.startswith(MARK):
                        print(value.decode(), time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    trio.run(run, *sys.argv[1:])
