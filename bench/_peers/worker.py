"""Asks one question of one server, in a process of its own.

    worker.py CLIENT ADDRESS PID QUESTION LOG COUNT RATE AFTER

RATE is the puts a second of the question ``half``, 0 for the others. AFTER says what to do with the log: keep or drop.
Prints a line of JSON with what was found (``Found``). The restart is told by the lines of stdin when it begins.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from _peers.clients.client import Client, Row, put_each
from _peers.open_loop import Schedule
from _peers.servers import processor_seconds
from _report import p50, p99

PUTTERS = 64
READERS = 8
KEY, VALUE_BYTES, LARGE_BYTES = b"key-%012d", 100, 512 * 1024
_STEP_BYTES = 9_973  # a prime, so that values that are near to each other have nothing in common
_TRIES_PAUSE_SECONDS = 0.005


class Found(NamedTuple):
    """Operations and seconds by the clock; seconds of processor time of client and server; µs of single puts."""

    count: int
    seconds: float
    client: float = 0.0
    server: float = 0.0
    p50: float = 0.0
    p99: float = 0.0

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.count / self.seconds


class _Clock:
    """Measures its body: time, and processor time of this process and of the server."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), processor_seconds(self._pid)

    def __enter__(self) -> _Clock:
        # The rows and modules of the bench are not the client's: a search for garbage would walk through them.
        gc.collect()
        gc.freeze()
        self._begin = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        self._spent = [end - begin for begin, end in zip(self._begin, self._now(), strict=True)]

    def found(self, count: int, puts: list[float] | None = None) -> Found:
        """Returns what was measured, for so many operations; ``puts`` are the seconds of each, if they were taken."""
        micros = [seconds * 1e6 for seconds in puts or ()]
        return Found(count, *self._spent, *((p50(micros), p99(micros)) if micros else ()))


def _rows(count: int, size: int = VALUE_BYTES) -> list[Row]:
    """Returns rows whose values do not compress: pieces of random bytes, each from another place."""
    source = os.urandom(max(1 << 20, 2 * size))
    places = (number * _STEP_BYTES % (len(source) - size) for number in range(count))
    return [(KEY % number, source[place : place + size]) for number, place in enumerate(places)]


async def _put_rows(client: Client, clock: _Clock, log: str, count: int) -> Found:
    rows = _rows(count)
    await client.open()
    await client.make(log)
    with clock:
        await client.put_rows(log, rows)
    return clock.found(count)


async def _write(client: Client, clock: _Clock, log: str, count: int) -> Found:
    batches = client.batches(_rows(count))
    await client.open()
    await client.make(log)
    with clock:
        await client.write(log, batches)
    return clock.found(count)


async def _read(client: Client, clock: _Clock, log: str, count: int, by: str = "rows") -> Found:
    await client.open()
    with clock:
        await client.read(log, count, 0, by)
    return clock.found(count)


async def _columns(client: Client, clock: _Clock, log: str, count: int) -> Found:
    return await _read(client, clock, log, count, "columns")


async def _one(client: Client, clock: _Clock, log: str, count: int) -> Found:
    rows = _rows(count)
    await client.open()
    await client.make(log)

    async def put(key: bytes, value: bytes) -> None:
        await client.put(log, key, value)

    await put_each(put, rows[:10])  # a first put opens things
    with clock:
        puts = await put_each(put, rows)
    return clock.found(count, puts)


async def _many(client: Client, clock: _Clock, log: str, count: int) -> Found:
    await client.open(PUTTERS)
    return await _put_all(client, clock, log, count)


async def _apart(client: Any, clock: _Clock, log: str, count: int) -> Found:
    await client.open_apart(PUTTERS)
    return await _put_all(client, clock, log, count)


async def _put_all(client: Client, clock: _Clock, log: str, count: int) -> Found:
    rows = _rows(count)
    await client.make(log)
    await client.put_all(log, rows[:PUTTERS], PUTTERS)
    with clock:
        puts = await client.put_all(log, rows, PUTTERS)
    return clock.found(count, puts)


async def _half(client: Client, clock: _Clock, log: str, count: int, schedule: Schedule) -> Found:
    """Puts at the rate of the schedule: the seconds of a put are those since it was due."""
    rows = _rows(count)
    await client.open(PUTTERS)
    await client.make(log)
    await client.put_all(log, rows[:PUTTERS], PUTTERS)
    with clock:
        schedule.begin()
        puts = await client.put_on_time(log, rows, schedule, PUTTERS)
    return clock.found(count, puts)


async def _large(client: Client, clock: _Clock, log: str, count: int) -> Found:
    """Counts MiB, in and out again."""
    rows = _rows(count, LARGE_BYTES)
    await client.open()
    await client.make(log)
    with clock:
        await client.put_rows(log, rows)
        await client.read(log, count)
    return clock.found(2 * count * LARGE_BYTES >> 20)


async def _fan_out(client: Client, clock: _Clock, log: str, count: int, readers: list[_Reader]) -> Found:
    batches = client.batches(_rows(count))
    await client.open()
    await client.make(log, READERS)
    with clock:
        for reader in readers:
            reader.begin()
        await client.write(log, batches)
        spent = [reader.end() for reader in readers]
    found = clock.found(count * READERS)
    return found._replace(client=found.client + sum(spent))


class _Reader:
    """A process that reads a log when it is told to: a fork, so that it has all modules already."""

    def __init__(self, made: Callable[[], Client], log: str, count: int, number: int) -> None:
        begin, self._begin = os.pipe()
        self._end, end = os.pipe()
        if os.fork():
            os.close(begin)
            os.close(end)
            return
        try:
            os.read(begin, 1)
            client = made()

            async def read() -> None:
                await client.open()
                await client.read(log, count, number)
                await client.close()

            client.run(read)
            os.write(end, json.dumps(time.process_time()).encode())
        finally:
            os._exit(0)

    def begin(self) -> None:
        """Has it read."""
        os.write(self._begin, b"!")

    def end(self) -> float:
        """Waits until it has read all; its seconds of processor time."""
        told = os.read(self._end, 100)
        assert told, "a reader has failed"
        seconds: float = json.loads(told)
        return seconds


async def _restart(client: Client, clock: _Clock, log: str, count: int) -> Found:
    """Tries to put a row until that works; from a line of stdin on."""
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    while True:
        try:
            await client.open()
            await client.put(log, KEY % 0, b"v" * VALUE_BYTES)
            return Found(1, time.perf_counter() - begin)
        except Exception:
            time.sleep(_TRIES_PAUSE_SECONDS)  # noqa: ASYNC251 - nothing else runs here


QUESTIONS: dict[str, Callable[..., Awaitable[Found]]] = {
    "put_rows": _put_rows,
    "write": _write,
    "read": _read,
    "columns": _columns,
    "one": _one,
    "many": _many,
    "apart": _apart,
    "half": _half,
    "large": _large,
    "fan_out": _fan_out,
    "restart": _restart,
    "restart_large": _restart,
}


def main() -> None:
    """Answers the question of the command line."""
    name, address, pid, question, log, count, rate, after = sys.argv[1:]
    made = importlib.import_module(f"_peers.clients.{name}").Client
    more: list[Any] = []
    if question == "fan_out":
        more = [[_Reader(lambda: made(address), log, int(count), number) for number in range(READERS)]]
    if question == "half":
        more = [Schedule(int(count), float(rate))]
    client = made(address)

    async def ask() -> Found:
        found = await QUESTIONS[question](client, _Clock(int(pid)), log, int(count), *more)
        print(json.dumps(found), flush=True)
        if after == "drop":
            await client.drop(log)
        await client.close()
        return found

    client.run(ask)


if __name__ == "__main__":
    main()
