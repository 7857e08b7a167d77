"""Makes tasks wait for an outbox: for room, first come, first served, and for answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from tailrace.requests.outbox import Outbox
from tailrace.requests.senders import Waits

_T = TypeVar("_T")


class Room:
    """Wakes every task that waits, at each change of an outbox. A cancelled task leaves no trace."""

    def __init__(self) -> None:
        self._line = trio.Lock()  # its waiters are served in their order
        self._waiting = trio.lowlevel.ParkingLot()

    def changed(self) -> None:
        """Lets all tasks look again. An outbox calls this with each answer."""
        self._waiting.unpark_all()

    async def enter(self, outbox: Outbox) -> None:
        """Waits until ``outbox`` has room; the caller then adds without another checkpoint. Always a checkpoint.

        Raises the outbox's first error, or ValueError if it is closed.
        """
        if outbox.has_failed:
            await trio.lowlevel.checkpoint()
            outbox.check()
        async with self._line:
            await self.until(lambda: outbox.has_room)
        outbox.enter(others_wait=self._line.locked())

    async def pass_all(self, waits: Waits[_T]) -> _T:
        """Waits for one condition after the other, and returns the result of ``waits``."""
        try:
            while True:
                await self.until(next(waits))
        except StopIteration as end:
            result: _T = end.value
            return result

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until ``condition()`` holds. A checkpoint only if it does not hold yet."""
        while not condition():
            await self._waiting.park()
