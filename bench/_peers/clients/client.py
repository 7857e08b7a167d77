"""The calls that the client of each peer has, and what those for asyncio share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from _peers.open_loop import Schedule

BATCH_ROWS = 1_000

Row: TypeAlias = tuple[bytes, bytes]
# Puts one row, and returns when it is on disk.
Put: TypeAlias = Callable[[bytes, bytes], Awaitable[object]]


class Client(Protocol):
    """A client of one server. A *log* is what it keeps rows in: a feed, a stream, a topic, a prefix, a table.

    What is put is on the server's disk when a call returns. ``run`` is the function that runs its coroutines.
    """

    def __init__(self, address: str) -> None: ...

    @staticmethod
    def run(work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any: ...

    async def open(self, putters: int = 1) -> None:
        """Connects, for as many rows at once as there are putters."""
        ...

    async def close(self) -> None: ...

    async def make(self, log: str, readers: int = 1) -> None:
        """Makes a log that so many consumers will read, each from its start."""
        ...

    async def drop(self, log: str) -> None: ...

    def batches(self, rows: Sequence[Row]) -> list[Any]:
        """Returns the rows as ``write`` takes them. What that costs is not measured."""
        ...

    async def put_rows(self, log: str, rows: Sequence[Row]) -> None:
        """Puts the rows by a call for each; the client sends them together."""
        ...

    async def write(self, log: str, batches: list[Any]) -> None:
        """Puts the rows by a call for many."""
        ...

    async def read(self, log: str, rows: int, reader: int = 0, by: str = "rows") -> None:
        """Reads the log from its start until so many rows have come. Takes out key and value of each as bytes."""
        ...

    async def put(self, log: str, key: bytes, value: bytes) -> None:
        """Puts one row."""
        ...

    async def put_all(self, log: str, rows: Sequence[Row], putters: int) -> list[float]:
        """Puts the rows by so many putters, each of which has one row under way. Returns the seconds of each put."""
        ...

    async def put_on_time(self, log: str, rows: Sequence[Row], schedule: Schedule, putters: int) -> list[float]:
        """Puts each row when it is due and a putter is free. Returns the seconds since each was due."""
        ...


def of(rows: Sequence[Row], size: int = BATCH_ROWS) -> list[Sequence[Row]]:
    """Cuts the rows into batches."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def run(work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Runs a coroutine under asyncio."""
    return asyncio.run(work(*arguments))  # type: ignore[arg-type]


async def put_each(put: Put, rows: Sequence[Row]) -> list[float]:
    """Puts one row after the other. Returns the seconds of each."""
    found = []
    for key, value in rows:
        begin = time.perf_counter()
        await put(key, value)
        found.append(time.perf_counter() - begin)
    return found


async def put_at_once(puts: Sequence[Put], rows: Sequence[Row]) -> list[float]:
    """Puts the rows by a task of asyncio for each of ``puts``."""
    shares = (rows[number :: len(puts)] for number in range(len(puts)))
    found = await asyncio.gather(*(put_each(put, share) for put, share in zip(puts, shares, strict=True)))
    return [seconds for several in found for seconds in several]
