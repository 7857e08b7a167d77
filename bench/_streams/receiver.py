"""``python receiver.py redis PORT STREAM`` or ``tailrace PORT FEED LEVEL``: takes all rows, and times the marked ones.

Prints "ready", then for each row whose value is marked the nanoseconds from the time in it to here, when the rows that
came with it had been decoded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import redis
import trio

import tailrace

MARK = b"written-at-"  # random values do not begin like this
VALUE_BYTES = 100
READ_ROWS_MAX = 1_000


def stamp(nanoseconds: int) -> bytes:
    """A marked value that tells when it was written."""
    return MARK + b"%0*d" % (VALUE_BYTES - len(MARK), nanoseconds)


def _tell(values: Sequence[bytes | None]) -> None:
    found = [value for value in values if value is not None and value.startswith(MARK)]
    if found:
        now = time.monotonic_ns()
        print("\n".join([str(now - int(value[len(MARK) :])) for value in found]), flush=True)


def receive_redis(port: int, stream: str) -> None:
    """Until it is ended."""
    client = redis.Redis(port=port)
    last: str | bytes = "$"
    client.ping()
    print("ready", flush=True)
    while True:
        ((_, entries),) = client.xread({stream: last}, count=READ_ROWS_MAX, block=0)
        last = entries[-1][0]
        _tell([fields[b"v"] for _, fields in entries])


async def receive_tailrace(port: int, feed: str, level: str) -> None:
    """Until it is ended."""
    async with (
        tailrace.connect(f"tailrace://127.0.0.1:{port}") as client,
        client.feed(feed).consume(since="now", visibility=level) as stream,
    ):
        print("ready", flush=True)
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                _tell(event.values())


if __name__ == "__main__":
    what, port, *names = sys.argv[1:]
    if what == "redis":
        receive_redis(int(port), *names)
    else:
        trio.run(receive_tailrace, int(port), *names)
