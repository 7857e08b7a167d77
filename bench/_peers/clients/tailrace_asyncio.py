"""Tailrace by its client for asyncio. It has the calls of single puts only."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tailrace.asyncio
from _peers.clients.client import Row, put_at_once, run


class Client:
    """A log is a feed of one partition."""

    run = staticmethod(run)

    def __init__(self, address: str) -> None:
        self._address = f"tailrace://{address}"

    async def open(self, putters: int = 1) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._client = await self._stack.enter_async_context(tailrace.asyncio.connect(self._address))

    async def close(self) -> None:
        await self._stack.aclose()

    async def make(self, log: str, readers: int = 1) -> None:
        self._feed = await self._client.create_feed(log, partitions=1)

    async def drop(self, log: str) -> None:
        await self._client.drop_feed(log)

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        await self._feed.put(key, value)

    async def put_all(self, log: str, rows: Sequence[Row], putters: int) -> list[float]:
        return await put_at_once([self._feed.put] * putters, rows)
