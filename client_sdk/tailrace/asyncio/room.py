"""Makes tasks wait for an outbox under asyncio: for room, first come, first served, and for answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tailrace.requests.outbox import Outbox
from tailrace.requests.senders import Waits

_T = TypeVar("_T")


class Room:
    """Wakes every task that waits, at each change of an outbox. A cancelled task leaves no trace."""

    def __init__(self) -> None:
        self._line = asyncio.Lock()  # its waiters are served in their order
        self._in_line = 0
        self._waiting: dict[asyncio.Future[None], None] = {}

    def changed(self) -> None:
        """Lets all tasks look again. An outbox calls this with each answer."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def enter(self, outbox: Outbox) -> None:
        """Waits until ``outbox`` has room; the caller then adds before any other task. Other tasks get their turn.

        Raises the outbox's first error, or ValueError if it is closed.
        """
        await asyncio.sleep(0)
        self._in_line += 1
        try:
            async with self._line:
                await self.until(lambda: outbox.has_room)
        finally:
            self._in_line -= 1
        outbox.enter(others_wait=self._in_line > 0)

    async def pass_all(self, waits: Waits[_T]) -> _T:
        """Waits for one condition after the other, and returns the result of ``waits``."""
        try:
            while True:
                await self.until(next(waits))
        except StopIteration as end:
            result: _T = end.value
            return result

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until ``condition()`` holds."""
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiting[waiter] = None
            try:
                await waiter
            finally:
                del self._waiting[waiter]
