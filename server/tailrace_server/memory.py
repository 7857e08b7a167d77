"""The node's account of what all write queues together hold in memory, and the writers who wait for room in it."""

from __future__ import annotations

import trio


class MemoryAccount:
    """``used`` bytes of at most ``bytes_max``: above that writers wait until the flusher has made room.

    ``stuck`` says why it cannot, "" where it can: then nobody waits, and writes are refused. After ``give_up`` it never
    will again.
    """

    def __init__(self, bytes_max: int = 256 * 1024 * 1024) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._stuck = self._given_up = ""
        self._room: trio.Event | None = None  # there while someone waits for it

    @property
    def is_full(self) -> bool:
        """No more may be taken."""
        return self.used >= self.bytes_max

    @property
    def is_tight(self) -> bool:
        """More than half is used: time to flush, so that nobody has to wait."""
        return 2 * self.used >= self.bytes_max

    @property
    def must_wait(self) -> bool:
        """A writer has to wait, and it will not be for ever."""
        return self.used >= self.bytes_max and not self._stuck

    @property
    def stuck(self) -> str:
        """Why there will be no room for now."""
        return self._stuck

    @stuck.setter
    def stuck(self, why: str) -> None:
        self._stuck = why or self._given_up
        self._look_again()

    def give_up(self, why: str) -> None:
        """Nothing more will become durable in this process, so nothing can be flushed."""
        self._given_up = self._stuck = why
        self._look_again()

    def change(self, nbytes: int) -> None:
        """``nbytes`` more are held, or less where it is negative."""
        self.used += nbytes
        if nbytes < 0:
            self._look_again()

    def _look_again(self) -> None:
        if self._room is not None and not self.must_wait:
            self._room.set()
            self._room = None

    async def room(self) -> None:
        """Returns once nobody has to wait; a checkpoint only where it has to."""
        while self.must_wait:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()
