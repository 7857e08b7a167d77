"""Keeps the shares that are being cut into parts (cutting.py), from one request to the next.

Sorting a large share takes longer than one step of a publish. So the sorted rows stay for the next step, or for the
same request after a broken connection. They go when the partition has the batch, after an error, or if they are not
used.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import trio

from tailrace.errors import TailraceError, TooLarge
from tailrace.wire.stage_messages import Publish
from tailrace_server.publishing.cutting import CutShare, Share
from tailrace_server.state.last_batches import PARTS_MAX, LastBatch

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.publishing.stages import Stages
    from tailrace_server.runtime.host import Host

# A client asks for the next step at once, and comes back soon after a broken connection.
KEPT_S_MAX = 60.0
# Shares that are sorted, or written in parts, at a time: each takes some 100 MiB of memory.
AT_ONCE_MAX = 2

_Key = tuple[bytes, str]


class _Kept:
    """A share that is being cut, ``what`` it belongs to, and when it was last used, in monotonic seconds."""

    __slots__ = ("cut", "path", "used_at", "what")

    def __init__(self, cut: CutShare, path: str, what: tuple[object, ...], used_at: float) -> None:
        self.cut = cut
        self.path = path
        self.what = what
        self.used_at = used_at


class Cuts:
    """The shares of one node: at most one of each sink and feed, because a sink's publishes take turns."""

    def __init__(self, host: Host, stages: Stages, bytes_max: int) -> None:
        self._host = host
        self._stages = stages
        self._bytes_max = bytes_max
        self._kept: dict[_Key, _Kept] = {}
        self._in_use: set[_Key] = set()
        self._turns = trio.Semaphore(AT_ONCE_MAX)

    @contextlib.asynccontextmanager
    async def turn(self, feed_id: bytes, sink: str) -> AsyncIterator[CutTurn]:
        """Lets the body cut a share of this sink. The cut rows stay, unless the body raises an error.

        Cancelling waits for the disk, to write the rows that are sorted in memory.
        """
        key = feed_id, sink
        async with self._turns:
            self._in_use.add(key)
            try:
                yield CutTurn(self, key)
            except trio.Cancelled:
                await self._rest(key)
                raise
            except Exception:  # sorting cannot go on behind any error
                await self.drop(key)
                raise
            finally:
                self._in_use.discard(key)
                if key in self._kept:
                    self._kept[key].used_at = self._host.clock.monotonic()

    async def find(
        self, key: _Key, partition: Partition, request: Publish, share: Sequence[Share], before: LastBatch | None
    ) -> CutShare:
        """Returns the share as far as it is cut, without the rows that the partition has by ``before``."""
        what = (partition.id, request.batch, request.origin, request.stages)
        after_hash = -1 if before is None else before.parts[-1].through
        kept = self._kept.get(key)
        if kept is not None and kept.what == what and kept.cut.after_hash == after_hash:
            return kept.cut
        await self.drop(key)
        file, path = await self._host.workers.in_thread(self._stages.directory.create_scratch)
        cut = CutShare(
            share,
            self._stages.directory.read_blocks,
            file,
            partition.id,
            hashes=(partition.hash_first, partition.hash_last),
            after_hash=after_hash,
            bytes_max=self._bytes_max,
        )
        self._kept[key] = _Kept(cut, path, what, self._host.clock.monotonic())
        return cut

    async def _rest(self, key: _Key) -> None:
        """Writes the rows of this sink's share that are in memory; removes the share if that fails."""
        kept = self._kept.get(key)
        if kept is None:
            return
        with trio.CancelScope(shield=True):
            try:
                await self._host.workers.in_thread(kept.cut.rest)
            except TailraceError:
                await self.drop(key)

    async def drop(self, key: _Key) -> None:
        """Removes this sink's share, if there is one. Cancelling waits for the disk."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.cut.close()
            with trio.CancelScope(shield=True):
                await self._host.workers.in_thread(functools.partial(self._stages.directory.remove, [kept.path]))

    async def expire(self) -> None:
        """Removes the shares that were not used for ``KEPT_S_MAX``."""
        cutoff = self._host.clock.monotonic() - KEPT_S_MAX
        for key in list(self._kept):
            kept = self._kept.get(key)  # a publish may have begun to use it while another one's file was removed
            if kept is not None and kept.used_at <= cutoff and key not in self._in_use:
                await self.drop(key)

    def close(self) -> None:
        """Closes all shares, when the node stops; the next start removes their files."""
        for kept in self._kept.values():
            kept.cut.close()


class CutTurn:
    """The share of one publish, while it has its turn."""

    def __init__(self, cuts: Cuts, key: _Key) -> None:
        self._cuts = cuts
        self._key = key

    async def find(
        self, partition: Partition, request: Publish, share: Sequence[Share], before: LastBatch | None
    ) -> CutShare:
        """Returns the share as far as it is cut, without the rows that the partition has by ``before``."""
        if before is not None and len(before.parts) >= PARTS_MAX:
            raise TooLarge(
                f"partition {partition.id} has {PARTS_MAX} parts of batch {request.batch} of sink {request.sink!r}, "
                "and takes no more of one batch: make batches smaller, or more partitions"
            )
        return await self._cuts.find(self._key, partition, request, share, before)

    async def drop(self) -> None:
        """Removes the share: the partition has all of it."""
        await self._cuts.drop(self._key)
