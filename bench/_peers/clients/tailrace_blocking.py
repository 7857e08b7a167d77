"""Tailrace by its blocking client. It has the calls of one put after the other only."""

from __future__ import annotations

import contextlib

import tailrace.blocking
from _peers.clients.client import run


class Client:
    """A log is a feed of one partition."""

    run = staticmethod(run)

    def __init__(self, address: str) -> None:
        self._address = f"tailrace://{address}"

    async def open(self, putters: int = 1) -> None:
        self._stack = contextlib.ExitStack()
        self._client = self._stack.enter_context(tailrace.blocking.connect(self._address))

    async def close(self) -> None:
        self._stack.close()

    async def make(self, log: str, readers: int = 1) -> None:
        self._feed = self._client.create_feed(log, partitions=1)

    async def drop(self, log: str) -> None:
        self._client.drop_feed(log)

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        self._feed.put(key, value)
