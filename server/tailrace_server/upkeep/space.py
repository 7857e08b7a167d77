"""The space that is left on the disk: what is kept to empty a full one, and when writers have to stop.

plenty    the reserve is kept, all is well
low       writes are refused, so that flushing and trimming still find room; the slowest readers let go of files
none      a flush fails: the reserve is given up for it, and made again once there is room
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from tailrace.errors import NoSpace
from tailrace_server.journal import Reserve
from tailrace_server.runtime.host import Host


class Space:
    """Of one data directory. ``low`` says why no write is taken, "" where there is room."""

    def __init__(self, host: Host, directory: str, reserve: Reserve, free_bytes_min: int) -> None:
        self._host = host
        self._directory = directory
        self._reserve = reserve
        self._free_bytes_min = free_bytes_min
        self.free_bytes = 0
        self.low = ""
        self.on_low: Callable[[], None] = lambda: None
        self._using_reserve = trio.Lock()  # its calls come one at a time

    @property
    def reserved_bytes(self) -> int:
        """What is kept to empty a full disk with."""
        return self._reserve.held_bytes

    async def look(self) -> None:
        """Measures, and makes the reserve where there is room for it. OSError."""
        async with self._using_reserve:
            self.free_bytes = await self._host.workers.in_thread(self._measure)
        if self.free_bytes < self._free_bytes_min:
            self.low = (
                f"only {self.free_bytes / 2**20:,.0f} MiB are free in {self._directory}, and writes are taken from "
                f"{self._free_bytes_min / 2**20:,.0f} MiB on: free some"
            )
            self.on_low()
        else:
            self.low = ""

    async def check_room(self, nbytes: int, what: str) -> None:
        """Raise NoSpace if ``nbytes`` more, for ``what``, would leave writers too little. OSError.

        A quarter of what is kept free for them is let through, as long as there is so much: what a small compaction
        drops may be all that is missing.
        """
        free = await self._host.workers.in_thread(lambda: self._host.disk.free_bytes(self._directory))
        if nbytes > min(free, max(free - self._free_bytes_min, self._free_bytes_min // 4)):
            raise NoSpace(
                f"{what} takes {nbytes / 2**20:,.0f} MiB for a while, and of the {free / 2**20:,.0f} MiB that are free "
                f"in {self._directory} {self._free_bytes_min / 2**20:,.0f} MiB are kept for writers: free some"
            )

    def _measure(self) -> int:
        self._reserve.make(free_bytes_min=self._free_bytes_min)
        return self._host.disk.free_bytes(self._directory)

    async def release(self) -> bool:
        """Gives up what is kept; False where nothing was. OSError."""
        async with self._using_reserve:
            if not self._reserve.held_bytes:
                return False
            await self._host.workers.in_thread(self._reserve.release)
        return True
