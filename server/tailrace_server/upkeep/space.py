"""The free space of the disk: a reserve to empty a full disk with, and a bound below which writers have to stop.

plenty    the reserve is kept, all is well
tight     since it was low: writes are taken, and other members of a set had better lead
low       writes are refused, so that flushing and trimming still find room; the slowest readers release files
none      a flush fails: the reserve is released for it, and made again once there is room; small files that a member
          needs get a piece of it
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from tailrace.errors import NoSpace
from tailrace_server.host.disk import Buffer
from tailrace_server.journal import Reserve
from tailrace_server.runtime.host import Host

# After writes were refused, the disk is tight until so many times the bytes that writes need are free. So a leader does
# not come and go while a disk is near the bound.
_PLENTY = 1.5


class Space:
    """The space of one data directory. ``low`` is why writes are refused, "" if there is room.

    ``is_tight``: writes are refused, or were since there was plenty.
    """

    def __init__(self, host: Host, directory: str, reserve: Reserve, free_bytes_min: int) -> None:
        self._host = host
        self._directory = directory
        self._reserve = reserve
        self._free_bytes_min = free_bytes_min
        self.free_bytes = 0
        self.low = ""
        self.is_tight = False
        self.on_low: Callable[[], None] = lambda: None
        self._using_reserve = trio.Lock()  # one call at a time

    @property
    def reserved_bytes(self) -> int:
        """The bytes of the reserve."""
        return self._reserve.held_bytes

    def set_free_bytes_min(self, free_bytes_min: int) -> None:
        """Refuses writes below so many free bytes, from the next look on."""
        self._free_bytes_min = free_bytes_min

    async def look(self) -> None:
        """Measures the free space, and makes the reserve if there is room for it. OSError."""
        async with self._using_reserve:
            self.free_bytes = await self._host.workers.in_thread(self._measure)
        if self.free_bytes < self._free_bytes_min:
            self.low = (
                f"only {self.free_bytes / 2**20:,.0f} MiB are free in {self._directory}, and writes need "
                f"{self._free_bytes_min / 2**20:,.0f} MiB: free some"
            )
            self.is_tight = True
            self.on_low()
        else:
            self.low = ""
            self.is_tight = self.is_tight and self.free_bytes < _PLENTY * self._free_bytes_min

    async def check_room(self, nbytes: int, what: str) -> None:
        """Raises NoSpace if ``nbytes`` more, for ``what``, would leave writers too little. OSError.

        A quarter of the space that is kept for writers may be used, if it is there: a small compaction may drop just
        the bytes that are missing.
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

    def write_small(self, path: str, data: Buffer) -> None:
        """Replaces a small file, as `Reserve.write_small`; any thread may call. OSError."""
        self._reserve.write_small(path, data)

    async def release(self) -> bool:
        """Releases the reserve. Returns False if there was none. OSError."""
        async with self._using_reserve:
            if not self._reserve.held_bytes:
                return False
            await self._host.workers.in_thread(self._reserve.release)
        return True
