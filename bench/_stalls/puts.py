"""``python puts.py ADDRESS FEED``: one task writes single puts of 1 KB at level `disk`, one after the other.

A line for each: the monotonic time at which it began, and the seconds that it took.
"""

from __future__ import annotations

import os
import sys
import time

import trio

import tailrace

_VALUE = os.urandom(1_000)
_KEYS = 1_000


async def put_for_ever(address: str, name: str) -> None:
    """Until the process ends."""
    number = 0
    async with tailrace.connect(address) as client:
        feed = client.feed(name)
        while True:
            begin = time.monotonic()
            await feed.put(b"key-%d" % (number % _KEYS), _VALUE)
            print(begin, time.monotonic() - begin, flush=not number % 16)
            number += 1


if __name__ == "__main__":
    trio.run(put_for_ever, sys.argv[1], sys.argv[2])
