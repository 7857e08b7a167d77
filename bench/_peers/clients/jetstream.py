"""NATS JetStream by nats-py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from _peers.clients.client import Put, Row, of, put_at_once, run
from _peers.open_loop import Schedule, put_on_time

_FETCH_ROWS = 1_000


class Client:
    """A log is a stream; the subject of a message is its key."""

    run = staticmethod(run)

    def __init__(self, address: str) -> None:
        self._address = address

    async def open(self, putters: int = 1) -> None:
        at = f"nats://{self._address}"
        options = {"error_cb": _ignore, "connect_timeout": 2, "allow_reconnect": False, "reconnect_time_wait": 0.01}
        self._client = await nats.connect(at, **options)
        self._stream = self._client.jetstream(timeout=60, publish_async_max_pending=4_000)

    async def close(self) -> None:
        await self._client.close()

    async def make(self, log: str, readers: int = 1) -> None:
        config = StreamConfig(name=log, subjects=[f"{log}.*"], storage=StorageType.FILE, num_replicas=1)
        await self._stream.add_stream(config)

    async def drop(self, log: str) -> None:
        await self._stream.delete_stream(log)

    def batches(self, rows: Sequence[Row]) -> list[Any]:
        return [[(key.decode(), value) for key, value in batch] for batch in of(rows)]

    async def put_rows(self, log: str, rows: Sequence[Row]) -> None:
        for key, value in rows:
            await self._stream.publish_async(f"{log}.{key.decode()}", value, wait_stall=60)
        await self._stream.publish_async_completed()

    async def write(self, log: str, batches: list[Any]) -> None:
        for batch in batches:
            for key, value in batch:
                await self._stream.publish_async(f"{log}.{key}", value, wait_stall=60)
        await self._stream.publish_async_completed()

    async def read(self, log: str, rows: int, reader: int = 0, by: str = "rows") -> None:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL, mem_storage=True)
        consumer = await self._stream.pull_subscribe(f"{log}.*", config=config, stream=log)
        begin = len(log) + 1
        while rows > 0:
            for message in await consumer.fetch(min(rows, _FETCH_ROWS), timeout=30):
                _ = message.subject[begin:].encode(), message.data
                rows -= 1
        await consumer.unsubscribe()

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        await self._stream.publish(f"{log}.{key.decode()}", value)

    async def put_all(self, log: str, rows: Sequence[Row], putters: int) -> list[float]:
        put: Put = lambda key, value: self.put(log, key, value)  # noqa: E731
        return await put_at_once([put] * putters, rows)

    async def put_on_time(self, log: str, rows: Sequence[Row], schedule: Schedule, putters: int) -> list[float]:
        put: Put = lambda key, value: self.put(log, key, value)  # noqa: E731
        return await put_on_time([put] * putters, rows, schedule)


async def _ignore(error: Exception) -> None:
    """Prints nothing: a call that fails raises."""
