"""``python consumer.py ADDRESS FEED``: reads a feed up to now, once."""

from __future__ import annotations

import sys

import trio

import tailrace


async def read(address: str, name: str) -> None:
    """All of it."""
    async with tailrace.connect(address) as client, client.feed(name).consume(until="now") as stream:
        async for _ in stream:
            pass


if __name__ == "__main__":
    trio.run(read, sys.argv[1], sys.argv[2])
