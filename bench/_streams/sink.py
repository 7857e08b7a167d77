"""``python sink.py PORT FEED ROWS``: takes keys and values of the first partition of a feed, as columns.

Prints "ready", connects after a line of input, and prints the bytes of all keys and values once it has so many rows.
"""

from __future__ import annotations

import sys

import trio

import tailrace


async def run(port: int, feed: str, rows: int) -> None:
    """Until it has all rows."""
    print("ready", flush=True)
    await trio.to_thread.run_sync(sys.stdin.readline)
    nbytes = 0
    async with (
        tailrace.connect(f"tailrace://127.0.0.1:{port}") as client,
        client.feed(feed).consume(partitions=[0]) as stream,
    ):
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                nbytes += sum(map(len, event.keys())) + sum([len(value or b"") for value in event.values()])
                rows -= len(event)
                if rows <= 0:
                    break
    print(nbytes, flush=True)


if __name__ == "__main__":
    trio.run(run, int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
