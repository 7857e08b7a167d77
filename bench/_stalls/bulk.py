"""``python bulk.py ADDRESS FEED``: writes rows of 1 KB as fast as the node takes them, until it is terminated.

A line for each second: the monotonic time, the rows that are acknowledged so far, the longest time that one of its
writes of 1,000 rows has taken since the last line.
"""

from __future__ import annotations

import os
import sys
import time

import trio

import tailrace

_ROWS, _VALUE_BYTES, _KEYS = 1_000, 1_000, 100_000


async def write_for_ever(address: str, name: str) -> None:
    """Until the process ends."""
    values = [os.urandom(_VALUE_BYTES) for _ in range(_ROWS)]
    async with tailrace.connect(address) as client, client.feed(name).writer() as writer:
        rows, longest, told_at = 0, 0.0, time.monotonic()
        while True:
            begin = time.monotonic()
            await writer.write(
                [tailrace.Put(b"key-%07d" % ((rows + i) * 7_919 % _KEYS), value) for i, value in enumerate(values)]
            )
            now = time.monotonic()
            rows, longest = rows + _ROWS, max(longest, now - begin)
            if now - told_at >= 1.0:
                print(now, rows, longest, flush=True)
                longest, told_at = 0.0, now


if __name__ == "__main__":
    trio.run(write_for_ever, sys.argv[1], sys.argv[2])
