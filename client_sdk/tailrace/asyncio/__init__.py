"""The client for asyncio.

The names are those of ``tailrace``, which is the client for trio::

    async with tailrace.asyncio.connect("tailrace://127.0.0.1:4700") as client:
        orders = await client.create_feed("orders")
        await orders.put(b"k", b"v")
        async with orders.consume() as stream:
            async for event in stream: ...

Events, errors and values are the same classes as in ``tailrace``. uvloop works, too, and is not needed.
"""

from __future__ import annotations

from tailrace.asyncio.client import Client, connect
from tailrace.asyncio.feed import Feed
from tailrace.asyncio.follower import Follower
from tailrace.asyncio.stage import Stage
from tailrace.asyncio.stream import Stream
from tailrace.asyncio.writer import Writer

__all__ = ["Client", "Feed", "Follower", "Stage", "Stream", "Writer", "connect"]
