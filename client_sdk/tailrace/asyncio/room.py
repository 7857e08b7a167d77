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
        self._line: dict[asyncio.Future[None], None] = {}  # of those that wait for room; the first one's turn it is
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
        turn = asyncio.get_running_loop().create_future()
        try:
            self._line[turn] = None
            self._call_first()
            await turn
            await self.until(lambda: outbox.has_room)
            self._leave(turn)
        except BaseException:  # a handler of a signal may raise at any line
            self._leave(turn)
            raise
        outbox.enter(others_wait=bool(self._line))

    def _leave(self, turn: asyncio.Future[None]) -> None:
        self._line.pop(turn, None)
        self._call_first()

    def _call_first(self) -> None:
        for turn in self._line:
            if not turn.done():
                turn.set_result(None)
            break

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
                self._waiting.pop(waiter, None)
