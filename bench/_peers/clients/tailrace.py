"""Tailrace by its client for trio."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pyarrow
import pyarrow.compute
import trio

import tailrace
from _peers.clients.client import Put, Row, of, put_each
from _peers.open_loop import Schedule, put_on_time_by_trio

# A consumer imports pyarrow when it first needs it, and pyarrow then imports pandas if that is installed. What this
# takes once in a process, 0.2 s, is not the figure of a row.
pyarrow.array([b"row"]).to_numpy(zero_copy_only=False)


class Client:
    """A log is a feed of one partition."""

    @staticmethod
    def run(work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return trio.run(work, *arguments)

    def __init__(self, address: str) -> None:
        self._address = f"tailrace://{address}"

    async def open(self, putters: int = 1) -> None:
        """One client is for all putters: it sends the rows that tasks put in one turn together."""
        await self.open_apart(1)

    async def open_apart(self, clients: int) -> None:
        """Connects so many clients, which know nothing of each other."""
        self._stack = contextlib.AsyncExitStack()
        connect = self._stack.enter_async_context
        self._many = [await connect(tailrace.connect(self._address)) for _ in range(clients)]
        self._client = self._many[0]
        self._feeds: dict[str, tailrace.Feed] = {}
        await self._client.status()

    async def close(self) -> None:
        await self._stack.aclose()

    async def make(self, log: str, readers: int = 1) -> None:
        self._feeds[log] = await self._client.create_feed(log, partitions=1)

    async def drop(self, log: str) -> None:
        await self._client.drop_feed(log)

    def batches(self, rows: Sequence[Row]) -> list[Any]:
        return [[tailrace.Put(key, value) for key, value in batch] for batch in of(rows)]

    async def put_rows(self, log: str, rows: Sequence[Row]) -> None:
        async with self._client.feed(log).writer() as writer:
            for key, value in rows:
                await writer.put(key, value)

    async def write(self, log: str, batches: list[Any]) -> None:
        async with self._client.feed(log).writer() as writer:
            for batch in batches:
                await writer.write(batch)

    async def read(self, log: str, rows: int, reader: int = 0, by: str = "rows") -> None:
        async with self._client.feed(log).consume() as stream:
            async for event in stream:
                if isinstance(event, tailrace.Mutations):
                    if by == "columns":
                        for _ in zip(event.keys(), event.values(), strict=True):
                            pass
                    else:
                        for mutation in event:
                            _ = mutation.key, mutation.value
                    rows -= len(event)
                    if rows <= 0:
                        return

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        feed = self._feeds.get(log)
        if feed is None:  # the restart makes none
            feed = self._feeds[log] = self._client.feed(log)
        await feed.put(key, value)

    async def put_all(self, log: str, rows: Sequence[Row], putters: int) -> list[float]:
        puts: list[Put] = [client.feed(log).put for client in self._many]
        puts *= putters // len(puts)
        found: list[float] = []

        async def work(put: Put, share: Sequence[Row]) -> None:
            found.extend(await put_each(put, share))

        async with trio.open_nursery() as nursery:
            for number, put in enumerate(puts):
                nursery.start_soon(work, put, rows[number::putters])
        return found

    async def put_on_time(self, log: str, rows: Sequence[Row], schedule: Schedule, putters: int) -> list[float]:
        return await put_on_time_by_trio([self._client.feed(log).put] * putters, rows, schedule)
