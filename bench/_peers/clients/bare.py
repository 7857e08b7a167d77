"""The least that a client on trio can do: it sends a row, and waits for the answer of ``_floors/server.py``."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio

from _floors.server import ANSWER
from _peers.clients.client import Put, Row, put_each
from _peers.open_loop import Schedule, put_on_time_by_trio


class Client:
    """A log is all that the server has. It has the calls of single puts only."""

    @staticmethod
    def run(work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return trio.run(work, *arguments)

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self._at = host, int(port)

    async def open(self, putters: int = 1) -> None:
        self._socks = [socket.create_connection(self._at) for _ in range(putters)]
        for sock in self._socks:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def close(self) -> None:
        for sock in self._socks:
            sock.close()

    async def make(self, log: str, readers: int = 1) -> None:
        """The server has a file already."""

    async def drop(self, log: str) -> None:
        """The file stays."""

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        await _put(self._socks[0], key, value)

    async def put_all(self, log: str, rows: Sequence[Row], putters: int) -> list[float]:
        found: list[float] = []

        async def work(put: Put, share: Sequence[Row]) -> None:
            found.extend(await put_each(put, share))

        async with trio.open_nursery() as nursery:
            for number, put in enumerate(self._puts()):
                nursery.start_soon(work, put, rows[number::putters])
        return found

    async def put_on_time(self, log: str, rows: Sequence[Row], schedule: Schedule, putters: int) -> list[float]:
        return await put_on_time_by_trio(self._puts(), rows, schedule)

    def _puts(self) -> list[Put]:
        return [partial(_put, sock) for sock in self._socks]


async def _put(sock: socket.socket, key: bytes, value: bytes) -> int:
    sock.send(key + value)
    await trio.lowlevel.wait_readable(sock)
    found: int = ANSWER.unpack(sock.recv(16_384))[0]
    return found
