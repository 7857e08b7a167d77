"""An open loop: each put has a time at which it is due, however long those before it take.

The latency of a put counts from the time at which it was due, not from its call. So a server that stands still for a
second delays every put of that second, and not the one that it had just taken ("coordinated omission").

The timers of the loops of asyncio and trio count milliseconds. So a process of its own sleeps until the next puts are
due, and writes a byte to a pipe, which the loops wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import trio

from _peers.clients.client import Put, Row

# Puts that are due within this time are due together. Else the wake-ups would take a good part of a processor.
TICK_SECONDS = 0.00025
# From `begin` until the first put is due.
_LEAD_SECONDS = 0.02
_READ_BYTES = 4_096


def due_times(count: int, rate: float, tick: float = TICK_SECONDS) -> list[float]:
    """Returns the seconds after the start at which each of ``count`` puts is due, at ``rate`` puts a second.

    They are even but for the ticks: each is the last tick before its exact time.
    """
    return [int(number / rate / tick) * tick for number in range(count)]


def once_each(due: Sequence[float]) -> Iterator[float]:
    """Returns the times of ``due``, which rises, each of them once."""
    yield from due[:1]
    for before, after in pairwise(due):
        if after > before:
            yield after


class Schedule:
    """When puts are due, and the pipe that tells it. Times are of ``time.perf_counter``, which all processes share."""

    def __init__(self, count: int, rate: float) -> None:
        """Forks the process of the ticks: no thread may run yet, and nothing be open that it should not have."""
        self._offsets = due_times(count, rate)
        self.pipe, ticks = os.pipe()
        begin, self._begin = os.pipe()
        self.due: list[float] = []
        self.seconds: list[float] = []  # of each put that has ended, since it was due
        self._next = 0
        if os.fork():
            os.close(ticks)
            os.close(begin)
            os.set_blocking(self.pipe, False)
            return
        try:
            os.close(self._begin)
            if told := os.read(begin, _READ_BYTES):  # nothing, if the worker has failed
                first = json.loads(told)
                for offset in once_each(self._offsets):
                    time.sleep(max(0.0, first + offset - time.perf_counter()))
                    os.write(ticks, b"!")
        finally:
            os._exit(0)

    def begin(self) -> None:
        """Makes the first put due, soon."""
        first = time.perf_counter() + _LEAD_SECONDS
        self.due = [first + offset for offset in self._offsets]
        os.write(self._begin, json.dumps(first).encode())

    @property
    def is_over(self) -> bool:
        """Whether all puts were due."""
        return self._next == len(self._offsets)

    def take(self) -> range:
        """Returns the numbers of the puts that have become due since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.pipe, _READ_BYTES)
        first, now = self._next, time.perf_counter()
        while not self.is_over and self.due[self._next] <= now:
            self._next += 1
        return range(first, self._next)

    def ended(self, number: int) -> None:
        """Notes that the put with this number is on disk."""
        self.seconds.append(time.perf_counter() - self.due[number])


class Queue:
    """The numbers of the puts that are due and that no putter has taken yet.

    Putters stay from put to put, as those of the closed loop do: a task for each put would cost the clients of Python
    more than the put, and half of a server's limit would be beyond their own.
    """

    def __init__(self) -> None:
        self.due: deque[int] = deque()
        self.is_over = False  # no more will come
        self._idle: deque[asyncio.Future[None]] = deque()

    def give(self, numbers: Iterable[int], is_over: bool) -> None:
        """Gives puts to the putters, and wakes as many as have something to do."""
        self.due.extend(numbers)
        self.is_over = is_over
        for _ in range(len(self._idle) if is_over else min(len(self.due), len(self._idle))):
            self._idle.popleft().set_result(None)

    async def take(self) -> int | None:
        """Returns the number of the next put, and waits until it is due; None if there are no more."""
        while not self.due:
            if self.is_over:
                return None
            self._idle.append(asyncio.get_running_loop().create_future())
            await self._idle[-1]
        return self.due.popleft()


async def put_on_time_by_trio(puts: Sequence[Put], rows: Sequence[Row], schedule: Schedule) -> list[float]:
    """Puts each row when it is due, by a task of trio for each of ``puts``. Returns seconds since each was due."""
    idle, due = trio.lowlevel.ParkingLot(), deque[int]()

    async def work(put: Put) -> None:
        while due or not schedule.is_over:
            if not due:
                await idle.park()
                continue
            number = due.popleft()
            await put(*rows[number])
            schedule.ended(number)

    async with trio.open_nursery() as nursery:
        for put in puts:
            nursery.start_soon(work, put)
        while not schedule.is_over:
            await trio.lowlevel.wait_readable(schedule.pipe)
            due.extend(schedule.take())
            idle.unpark(count=len(due))
        idle.unpark_all()
    return schedule.seconds


async def put_on_time(puts: Sequence[Put], rows: Sequence[Row], schedule: Schedule) -> list[float]:
    """Puts each row when it is due, by a task of asyncio for each of ``puts``. Returns seconds since each was due."""
    loop, ticks, queue = asyncio.get_running_loop(), asyncio.Event(), Queue()

    async def work(put: Put) -> None:
        while (number := await queue.take()) is not None:
            await put(*rows[number])
            schedule.ended(number)

    loop.add_reader(schedule.pipe, ticks.set)
    putters = [asyncio.ensure_future(work(put)) for put in puts]
    while not schedule.is_over:
        await ticks.wait()
        ticks.clear()
        due = schedule.take()
        queue.give(due, schedule.is_over)
    loop.remove_reader(schedule.pipe)
    await asyncio.gather(*putters)
    return schedule.seconds
