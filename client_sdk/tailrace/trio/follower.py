"""Keeps an index equal to a feed: ``async with feed.follow(index) as follower: ...``

Two tasks: one reads what arrives, up to the bounds of a transaction; the other applies it, on the index's own thread,
and of each key only the newest. So the slower the index, the more a transaction holds, and the fewer rows it writes.
``applier`` decides which calls the index gets, and in which order.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import trio

from tailrace.consuming.events import Rollback
from tailrace.consuming.partition import PartitionStatus
from tailrace.consuming.ring import RING_ROWS
from tailrace.consuming.session import Subscription
from tailrace.errors import StreamEnded, VersionLost
from tailrace.indexes import Index, IndexBusy
from tailrace.indexes.applier import BUSY_PAUSE_S, Applier, IndexBatch, IndexQueue, IndexRollback
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.link.forks import OfOneProcess
from tailrace.model import EndReason, Level, Version
from tailrace.model.arguments import count
from tailrace.model.position import Positions
from tailrace.trio.host import Host
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.stream import Stream

# A program that starts while another one has the index locked is told so after a while.
OPEN_BUSY_SECONDS = 60.0

# The followers of this process, by the id of their index.
_followed: dict[int, Follower] = {}


class FollowedFeed(Protocol):
    """The feed that an index follows."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> Host: ...
    def level(self, text: str) -> Level: ...
    def stream(self, subscription: Subscription) -> Stream: ...


class Follower(OfOneProcess):
    """Applies a feed to an index, each batch together with its checkpoint. Made by `Feed.follow`.

    All tasks of one trio run may call its methods. If the index raises an exception, the body ends with it.
    """

    def __init__(self, feed: FollowedFeed, index: Index, *, visibility: str = "disk", ring: int = RING_ROWS) -> None:
        self._feed = feed
        self._index = index
        self._applier = Applier(index)
        self._visibility = visibility
        self._ring_rows = count("ring", ring)
        self._thread = feed.host.worker(f"tailrace index of {feed.name}")
        self._lifetime = Lifetime()
        self._arrived = trio.Event()
        self._taken = trio.Event()
        self._applied = 0  # events, to tell when a barrier's have been applied
        self._moved = trio.Event()
        self._ended = False
        self._positions: Positions | None = None
        self._applied_rows = 0
        self._partitions: frozenset[int] = frozenset()
        self._register()

    async def __aenter__(self) -> Follower:
        """Opens the index, and resumes from its stored positions.

        Raises ValueError if a follower of this process has the index already, the errors of the index (IndexBusy only
        after 60 s), BadPosition, UnknownFeed, ...
        """
        self.check_process()
        if _followed.setdefault(id(self._index), self) is not self:
            raise ValueError(
                f"the index {self._index!r} is followed already, and two followers would mix their positions: give "
                "each one an index of its own"
            )
        self._thread.start()
        try:
            checkpoint = await self._open_index()
            subscription = Subscription(
                self._feed.name,
                visibility=self._feed.level(self._visibility),
                ring_rows=self._ring_rows,
                by_index=True,
            )
            if checkpoint is not None:
                positions, rings = checkpoint.positions, checkpoint.rings
                subscription = subscription._replace(since=positions, stored=(positions,), rings=rings)
            self._stream = self._feed.stream(subscription)
            self._jobs = IndexQueue(self._stream)
            await self._stream.__aenter__()
        except BaseException:
            await self._close_index()
            raise
        self._positions = self._stream.positions if checkpoint is None else checkpoint.positions
        self._partitions = frozenset(status.partition for status in self._stream.status())
        self._stream.watch_history(self._wake_waiters)
        await self._lifetime.__aenter__()
        self._lifetime.start(self._read)
        self._lifetime.start(self._apply)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._forked_from:
            return False
        self._applier.leave()
        try:
            return await self._lifetime.__aexit__(kind, error, traceback)
        finally:
            self._ended = True
            self._moved.set()
            try:
                await self._stream.__aexit__(None, None, None)
            finally:
                await self._close_index()

    async def _open_index(self) -> Checkpoint | None:
        deadline = trio.current_time() + OPEN_BUSY_SECONDS
        while True:
            try:
                return await self._thread.run(self._applier.open)
            except IndexBusy:
                if trio.current_time() >= deadline:
                    raise
            await trio.sleep(BUSY_PAUSE_S)

    async def _close_index(self) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self._thread.run(self._index.close)
        finally:
            self._thread.stop()
            del _followed[id(self._index)]

    # What users ask

    async def barrier(self) -> None:
        """Waits until the index holds every write that was acknowledged, at any level, before this call.

        Cancelling it has no effect on the follower.

        Raises:
            StreamEnded: The follower has ended.
        """
        self.check_process()
        await self._stream.barrier()
        await self._wait_applied(self._jobs.received)

    async def wait_for(self, version: Version) -> None:
        """Waits until the index holds a version, or a later mutation of its key. Cancelling it changes nothing.

        Right after a failover the version may be newer than everything that the follower knows. It counts as lost only
        if a barrier has completed since the call and the version is still not in the history.

        Args:
            version: The version that a write has returned, in this process or another one.

        Raises:
            VersionLost: The version's history was dropped, or is older than the 25 newest branches.
            ValueError: The feed has no such partition.
            StreamEnded: The follower has ended.
        """
        self.check_process()
        partition, branch, seq = version
        if partition not in self._partitions:
            raise ValueError(
                f"{version} is of partition {partition}, and feed {self._feed.name!r} has {len(self._partitions)}, "
                "from 0 on: wait for a version of this feed"
            )
        is_confirmed = False
        while not self._has(version):
            if self._stream.failover_log(partition).may_have(branch, seq):
                is_confirmed = False
                await self._wait_moved()
            elif not is_confirmed:
                await self.barrier()  # only the node that leads can tell, and a barrier asks it
                is_confirmed = True
            else:
                raise VersionLost(f"{version} is lost: the history of partition {partition} does not have it any more")

    def _has(self, version: Version) -> bool:
        position = self.positions.get(version.partition)
        return position is not None and position.has(version.branch, version.seq)

    @property
    def positions(self) -> Positions:
        """The positions of the index. Everything up to them is applied and stored."""
        assert self._positions is not None
        return self._positions

    @property
    def lag(self) -> dict[int, int]:
        """The number of seqs, by partition, between the index and the newest seq that the follower knows."""
        seqs = self.positions.seqs()
        return {s.partition: max(s.seq + s.lag - seqs.get(s.partition, 0), 0) for s in self._stream.status()}

    def status(self) -> list[PartitionStatus]:
        """Returns the state of each partition's stream.

        Returns:
            The state with its reason, the next retry, and the lag, for each partition.
        """
        return self._stream.status()

    @property
    def applied_rows(self) -> int:
        """The number of rows that were written to the index since the body began, deletions included."""
        return self._applied_rows

    async def _wait_applied(self, count: int) -> None:
        while self._applied < count:
            await self._wait_moved()

    async def _wait_moved(self) -> None:
        failure = self._lifetime.failure
        if failure is not None:
            raise StreamEnded(f"the follower has ended: {failure}", reason=EndReason.ERROR)
        if self._ended:
            raise StreamEnded("the follower was closed", reason=EndReason.CLOSED)
        await self._moved.wait()

    def _wake_waiters(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    # Reading and applying

    async def _read(self) -> None:
        async for event in self._stream:
            while self._jobs.is_full:
                self._taken = trio.Event()
                await self._taken.wait()
            if self._jobs.add(event):
                self._arrived.set()
            if isinstance(event, Rollback):
                # What comes next depends on how far the index goes back: nothing later may be stored before.
                await self._wait_applied(self._jobs.received)

    async def _apply(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            jobs, covered = self._jobs.take()
            self._taken.set()
            for job in jobs:
                await self._do(job)
            self._applied = covered
            self._wake_waiters()

    async def _do(self, job: IndexBatch | IndexRollback) -> None:
        try:
            await self._do_once_free(job)
        except IndexBusy:
            await trio.sleep_forever()  # the follower is being left; rows that were not stored come again

    async def _do_once_free(self, job: IndexBatch | IndexRollback) -> None:
        if isinstance(job, IndexRollback):
            point = await self._thread.run(self._applier.roll_back, job)
            self._stream.settle(job.event, point)
        else:
            self._applied_rows += await self._thread.run(self._applier.apply, job)
        self._positions = self._applier.positions
