"""The node's account of the memory of write queues and producers; writers wait here for room."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import trio

# Producers have at most one in this many bytes; the write queues have the rest, so that a flush makes room.
_PRODUCERS_SHARE = 4
# One in this many bytes is freed each time, because each time costs a look at the ages in many tables.
_FREED_SHARE = 8
# Tables that forget with each block that comes: one takes some 100 µs, and a node may have 100,000 tables.
_TABLES_AT_ONCE = 64
# Tables whose ages are read to choose the producers to forget: reading one takes a microsecond.
_TABLES_SAMPLED = 1_024


class MemoryAccount:
    """Counts ``held`` bytes of at most ``bytes_max``; above, writers wait until the flusher has made room.

    ``used`` bytes of these are the write queues'. If the flusher cannot make room, ``stuck`` says why, and else is "".
    While it is set, writes are refused at once. After ``give_up`` it stays set.
    """

    def __init__(self, bytes_max: int = 256 * 1024 * 1024) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.stuck = self._given_up = ""
        self._room: trio.Event | None = None  # set while a writer waits for room
        self._is_ahead: Callable[[], bool] | None = None  # whether writers are ahead of the flusher
        self.producers = ProducerMemory(self)

    @property
    def held(self) -> int:
        """Bytes of the write queues and of the producers."""
        return self.used + self.producers.used

    @property
    def is_full(self) -> bool:
        """Whether no more bytes may be added."""
        return self.held >= self.bytes_max

    @property
    def is_tight(self) -> bool:
        """Whether the write queues have more than half of the bytes: time to flush, before writers have to wait."""
        return 2 * self.used >= self.bytes_max

    @property
    def must_wait(self) -> bool:
        """Whether a writer has to wait, for a flush that will come."""
        if self.used + self.producers.used >= self.bytes_max or (self._is_ahead is not None and self._is_ahead()):
            return not self.stuck
        return False

    def slow_down(self, is_ahead: Callable[[], bool] | None) -> None:
        """Lets writers wait while ``is_ahead()`` returns True, until the next call; None ends it.

        The caller calls ``look_again`` when the result may have changed.
        """
        self._is_ahead = is_ahead
        self.look_again()

    def set_stuck(self, why: str) -> None:
        """Notes why the flusher cannot make room; "" if it can."""
        self.stuck = why or self._given_up
        self.look_again()

    def give_up(self, why: str) -> None:
        """Sets ``stuck`` for good: no write becomes durable in this process any more, so no block can be flushed."""
        self._given_up = self.stuck = why
        self.look_again()

    def change(self, nbytes: int) -> None:
        """Adds ``nbytes`` to the bytes of the write queues, or subtracts them if negative."""
        self.used += nbytes
        if nbytes < 0:
            self.look_again()

    def look_again(self) -> None:
        """Wakes the waiting writers if they need not wait any more."""
        if self._room is not None and not self.must_wait:
            self._room.set()
            self._room = None

    async def room(self) -> None:
        """Waits until there is room. It is a checkpoint only if it waits."""
        while self.must_wait:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()


class Evicting(Protocol):
    """A table of producers: `tailrace_server.state.producers.ProducerTable`."""

    def used_at(self) -> npt.NDArray[np.float64]: ...

    def evict_through(self, used_at: float, now: float) -> None: ...


class ProducerMemory:
    """Bounds the memory of the producers of all partitions: above ``bytes_max`` it forgets the least recently used."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self.bytes_max = account.bytes_max // _PRODUCERS_SHARE
        self.used = 0
        self._tables: dict[Evicting, int] = {}
        self._waiting: collections.deque[Evicting] = collections.deque()  # tables whose turn to forget is still to come
        self._last = 0.0  # they forget the producers that were used then or before

    def charge(self, table: Evicting, nbytes: int) -> None:
        """Notes that ``table`` holds ``nbytes``; 0 removes it."""
        grown = nbytes - self._tables.pop(table, 0)
        if nbytes:
            self._tables[table] = nbytes
        self.used += grown
        if grown < 0:
            self._account.look_again()

    def make_room(self, now: float) -> None:
        """Lets the tables forget the least recently used producers, until all together hold at most ``bytes_max``.

        ``now`` is monotonic seconds. It is for a start: it takes up to some 100 µs for each table.
        """
        while self.used > self.bytes_max:
            self._choose()
            while self._waiting and self.used > self._wanted:
                self._forget(now)
        self._waiting.clear()

    def make_some_room(self, now: float) -> None:
        """Does a step of ``make_room``, for each block that comes. A step frees more than a block adds.

        So a node with many partitions exceeds the bound by a little while its tables forget in turn.
        """
        if len(self._tables) <= _TABLES_AT_ONCE:
            self.make_room(now)
            return
        for _ in range(_TABLES_AT_ONCE):
            if not self._waiting:
                if self.used <= self.bytes_max:
                    return
                self._choose()
            self._forget(now)
            if self.used <= self._wanted:
                self._waiting.clear()

    @property
    def _wanted(self) -> int:
        return self.bytes_max - self.bytes_max // _FREED_SHARE

    def _choose(self) -> None:
        """Chooses the time since when producers stay, so that all tables together would hold ``_wanted`` bytes."""
        tables = list(self._tables)
        sample = tables[:: -(-len(tables) // _TABLES_SAMPLED)]
        used_at = np.concatenate([table.used_at() for table in sample])
        count = max(int(used_at.size * (self.used - self._wanted) / self.used), 1)
        self._last = float(np.partition(used_at, count - 1)[count - 1])
        self._waiting = collections.deque(tables)

    def _forget(self, now: float) -> None:
        table = self._waiting.popleft()
        if table in self._tables:  # else it was removed meanwhile, or is empty
            table.evict_through(self._last, now)
