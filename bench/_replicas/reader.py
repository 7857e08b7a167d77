"""``python reader.py URL POSITIONS``: takes the feed "bench" from there to what there is now, by columns.

Prints how many seconds that took, from when it connects.
"""

from __future__ import annotations

import sys
import time

import trio

import tailrace


async def run(url: str, positions: str) -> None:
    """Until it has all."""
    begin = time.perf_counter()
    since = tailrace.Positions.parse(positions)
    async with tailrace.connect(url) as client, client.feed("bench").consume(since, until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                keys, values = event.keys(), event.values()
                assert len(keys) == len(values)
    print(time.perf_counter() - begin)


if __name__ == "__main__":
    trio.run(run, *sys.argv[1:])
