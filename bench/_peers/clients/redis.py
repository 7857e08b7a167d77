"""Redis Streams by redis-py with hiredis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio

from _peers.clients.client import BATCH_ROWS, Put, Row, of, put_at_once, run
from _peers.open_loop import Schedule, put_on_time


class Client:
    """A log is a stream of Redis: an entry has the fields k and v."""

    run = staticmethod(run)

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._at: dict[str, Any] = {"host": host, "port": int(port)}

    async def open(self, putters: int = 1) -> None:
        self._client = redis.Redis(**self._at)  # one by one a client that blocks is the fastest
        self._client.ping()
        self._many = []
        if putters > 1:
            for _ in range(putters):
                self._many.append(redis.asyncio.Redis(**self._at, single_connection_client=True))
            await asyncio.gather(*(client.ping() for client in self._many))

    async def close(self) -> None:
        self._client.close()
        for client in self._many:
            await client.aclose()

    async def make(self, log: str, readers: int = 1) -> None:
        self._client.delete(log)

    async def drop(self, log: str) -> None:
        self._client.delete(log)

    def batches(self, rows: Sequence[Row]) -> list[Any]:
        return [[{b"k": key, b"v": value} for key, value in batch] for batch in of(rows)]

    async def put_rows(self, log: str, rows: Sequence[Row]) -> None:
        for batch in of(rows):
            pipeline = self._client.pipeline(transaction=False)
            for key, value in batch:
                pipeline.xadd(log, {b"k": key, b"v": value})
            pipeline.execute()

    async def write(self, log: str, batches: list[Any]) -> None:
        for batch in batches:
            pipeline = self._client.pipeline(transaction=False)
            for fields in batch:
                pipeline.xadd(log, fields)
            pipeline.execute()

    async def read(self, log: str, rows: int, reader: int = 0, by: str = "rows") -> None:
        last: bytes = b"0"
        while rows > 0:
            for _, entries in self._client.xread({log: last}, count=BATCH_ROWS, block=10_000):
                for id, fields in entries:
                    _ = fields[b"k"], fields[b"v"]
                    last = id
                rows -= len(entries)

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        self._client.xadd(log, {b"k": key, b"v": value})

    async def put_all(self, log: str, rows: Sequence[Row], putters: int) -> list[float]:
        return await put_at_once(self._puts(log), rows)

    async def put_on_time(self, log: str, rows: Sequence[Row], schedule: Schedule, putters: int) -> list[float]:
        return await put_on_time(self._puts(log), rows, schedule)

    def _puts(self, log: str) -> list[Put]:
        def by(client: Any) -> Put:
            return lambda key, value: client.xadd(log, {b"k": key, b"v": value})

        return [by(client) for client in self._many]
