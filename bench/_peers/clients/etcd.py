"""etcd by aetcd, over gRPC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aetcd

from _peers.clients.client import Put, Row, of, put_at_once, run
from _peers.open_loop import Schedule, put_on_time

_ROWS_OF_TRANSACTION = 128  # --max-txn-ops of the server, its default
_BYTES_OF_TRANSACTION = 1024 * 1024  # --max-request-bytes is 1.5 MiB by default
_UNDER_WAY = 8


class Client:
    """A log is the keys with a prefix. Many rows are put in transactions, several of which are under way."""

    run = staticmethod(run)

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._at: dict[str, Any] = {"host": host, "port": int(port)}
        self._at["options"] = {"grpc.max_receive_message_length": -1, "grpc.initial_reconnect_backoff_ms": 100}

    async def open(self, putters: int = 1) -> None:
        self._client = aetcd.Client(**self._at)
        await self._client.connect()

    async def close(self) -> None:
        await self._client.close()

    async def make(self, log: str, readers: int = 1) -> None:
        """A prefix needs nothing."""

    async def drop(self, log: str) -> None:
        await self._client.delete_prefix(_prefix(log))

    def batches(self, rows: Sequence[Row]) -> list[Any]:
        return list(of(rows, max(1, min(_ROWS_OF_TRANSACTION, _BYTES_OF_TRANSACTION // len(rows[0][1])))))

    async def put_rows(self, log: str, rows: Sequence[Row]) -> None:
        await self.write(log, self.batches(rows))

    async def write(self, log: str, batches: list[Any]) -> None:
        puts = self._client.transactions.put

        async def put(_: bytes, batch: Any) -> None:
            await self._client.transaction([], [puts(_key(log, key), value) for key, value in batch], [])

        await put_at_once([put] * _UNDER_WAY, [(b"", batch) for batch in batches])

    async def read(self, log: str, rows: int, reader: int = 0, by: str = "rows") -> None:
        prefix = _prefix(log)
        async for event in await self._client.watch(prefix, _end(prefix), start_revision=1):
            _ = event.kv.key[len(prefix) :], event.kv.value
            rows -= 1
            if not rows:
                return

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        await self._client.put(_key(log, key), value)

    async def put_all(self, log: str, rows: Sequence[Row], putters: int) -> list[float]:
        put: Put = lambda key, value: self.put(log, key, value)  # noqa: E731
        return await put_at_once([put] * putters, rows)

    async def put_on_time(self, log: str, rows: Sequence[Row], schedule: Schedule, putters: int) -> list[float]:
        put: Put = lambda key, value: self.put(log, key, value)  # noqa: E731
        return await put_on_time([put] * putters, rows, schedule)


def _prefix(log: str) -> bytes:
    return log.encode() + b"/"


def _key(log: str, key: bytes) -> bytes:
    return _prefix(log) + key


def _end(prefix: bytes) -> bytes:
    """Returns the first key behind those with the prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
