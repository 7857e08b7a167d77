"""The node's account of what write queues and producers hold in memory, and the writers who wait for room in it."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import trio

# Producers have this share of the memory at most; the rest is the write queues', so that a flush makes room.
_PRODUCERS_SHARE = 4
# So much of it is freed each time, since each time costs a look at the ages in many tables.
_FREED_SHARE = 8
# While blocks come, so many tables forget with each: one takes some 100 µs, and a node may have a hundred thousand.
_TABLES_AT_ONCE = 64
# What is to go is told by the ages in so many tables: looking at one takes a microsecond.
_TABLES_SAMPLED = 1_024


class MemoryAccount:
    """``held`` bytes of at most ``bytes_max``: above that writers wait until the flusher has made room.

    ``used`` of them are the write queues'.

    ``stuck`` says why it cannot, "" where it can: then nobody waits, and writes are refused. After ``give_up`` it never
    will again.
    """

    def __init__(self, bytes_max: int = 256 * 1024 * 1024) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._stuck = self._given_up = ""
        self._room: trio.Event | None = None  # there while someone waits for it
        self._is_ahead: Callable[[], bool] | None = None  # writers are, of the flusher
        self.producers = ProducerMemory(self)

    @property
    def held(self) -> int:
        """Bytes of the write queues and of the producers."""
        return self.used + self.producers.used

    @property
    def is_full(self) -> bool:
        """No more may be taken."""
        return self.held >= self.bytes_max

    @property
    def is_tight(self) -> bool:
        """The write queues have more than half: time to flush, so that nobody has to wait."""
        return 2 * self.used >= self.bytes_max

    @property
    def must_wait(self) -> bool:
        """A writer has to wait, and it will not be for ever."""
        return (self.held >= self.bytes_max or (self._is_ahead is not None and self._is_ahead())) and not self._stuck

    def slow_down(self, is_ahead: Callable[[], bool] | None) -> None:
        """Lets writers wait while ``is_ahead()``, until the next call; None: no longer for that.

        The caller calls ``look_again`` when it may be over.
        """
        self._is_ahead = is_ahead
        self.look_again()

    @property
    def stuck(self) -> str:
        """Why there will be no room for now."""
        return self._stuck

    @stuck.setter
    def stuck(self, why: str) -> None:
        self._stuck = why or self._given_up
        self.look_again()

    def give_up(self, why: str) -> None:
        """Nothing more will become durable in this process, so nothing can be flushed."""
        self._given_up = self._stuck = why
        self.look_again()

    def change(self, nbytes: int) -> None:
        """The write queues hold ``nbytes`` more, or less where it is negative."""
        self.used += nbytes
        if nbytes < 0:
            self.look_again()

    def look_again(self) -> None:
        """Lets writers through if less is held than before."""
        if self._room is not None and not self.must_wait:
            self._room.set()
            self._room = None

    async def room(self) -> None:
        """Returns once nobody has to wait; a checkpoint only where it has to."""
        while self.must_wait:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()


class Evicting(Protocol):
    """A table of producers: `tailrace_server.state.producers.ProducerTable`."""

    def used_at(self) -> npt.NDArray[np.float64]: ...

    def evict_through(self, used_at: float, now: float) -> None: ...


class ProducerMemory:
    """What the producers of all partitions hold: above ``bytes_max`` the least recently used are forgotten."""

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self.bytes_max = account.bytes_max // _PRODUCERS_SHARE
        self.used = 0
        self._tables: dict[Evicting, int] = {}
        self._waiting: collections.deque[Evicting] = collections.deque()  # tables that are still to forget
        self._last = 0.0  # they forget what was used then or before

    def charge(self, table: Evicting, nbytes: int) -> None:
        """Notes that ``table`` holds ``nbytes``; 0: it is gone."""
        grown = nbytes - self._tables.pop(table, 0)
        if nbytes:
            self._tables[table] = nbytes
        self.used += grown
        if grown < 0:
            self._account.look_again()

    def make_room(self, now: float) -> None:
        """Has the tables forget the producers that were used least recently, until together they hold little enough.

        ``now`` is monotonic seconds. For a start: it takes up to some 100 µs for each table.
        """
        while self.used > self.bytes_max:
            self._choose()
            while self._waiting and self.used > self._wanted:
                self._forget(now)
        self._waiting.clear()

    def make_some_room(self, now: float) -> None:
        """Does a step of what ``make_room`` does, which frees more than a block takes: for each block that comes.

        So the bound of a node with many partitions is passed by a little, as long as their tables forget in turn.
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
        """Decides from when on producers stay, so that all tables together would hold what is wanted."""
        tables = list(self._tables)
        sample = tables[:: -(-len(tables) // _TABLES_SAMPLED)]
        used_at = np.concatenate([table.used_at() for table in sample])
        count = max(int(used_at.size * (self.used - self._wanted) / self.used), 1)
        self._last = float(np.partition(used_at, count - 1)[count - 1])
        self._waiting = collections.deque(tables)

    def _forget(self, now: float) -> None:
        table = self._waiting.popleft()
        if table in self._tables:  # else it is gone meanwhile, or holds nothing any more
            table.evict_through(self._last, now)
