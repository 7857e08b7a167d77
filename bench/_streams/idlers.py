"""``python idlers.py PORT FEED CONNECTIONS PARTITIONS``: so many consumers, each of so many partitions of a feed.

Prints "ready" once all of their streams are open.
"""

from __future__ import annotations

import sys

import trio

import tailrace

# What connects at the same time: more would only wait for each other.
_AT_ONCE = 8


async def run(port: int, feed: str, connections: int, partitions: int) -> None:
    """Until it is ended."""
    at_once = trio.CapacityLimiter(_AT_ONCE)
    opened = 0

    async with tailrace.connect(f"tailrace://127.0.0.1:{port}") as client, trio.open_nursery() as nursery:

        async def consume(number: int) -> None:
            nonlocal opened
            wanted = range(number, number + partitions)
            async with at_once:
                stream = await client.feed(feed).consume(since="now", partitions=wanted).__aenter__()
            try:
                opened += 1
                if opened == connections:
                    print("ready", flush=True)
                async for _ in stream:
                    pass
            finally:
                await stream.__aexit__(None, None, None)

        for number in range(connections):
            nursery.start_soon(consume, number)


if __name__ == "__main__":
    port, feed, connections, partitions = sys.argv[1:]
    trio.run(run, int(port), feed, int(connections), int(partitions))
