"""Group commit: one fsync answers every write that arrived before it began.

    append ── note ──> [ waiting: (lsn, partition, last seq) ]      when_durable ──> [ answers: (lsn, callback) ]
                                        │
                     sync, on the loop or in a thread: everything up to `written`
                                        │
              partition.durable_through (streams send)   then   answers in the order of their lsns

The streams come before the answers: a consumer has been waiting for nothing else, a writer has its own next work.

On the loop's thread an fsync saves two changes of threads (about 0.1 ms), but everything else waits. So the committer
syncs there only while the disk is fast and few bytes wait. The disk counts as fast by the median of the last small
fsyncs. A mean would not do: on a disk that others use, one fsync in twenty takes ten times as long.

Of several writers, an fsync waits until a pass of the loop has brought no write, for some passes at most. Each fsync
costs every node of a set a message, and an fsync and an acknowledgement at each replica.

Writes that arrive during an fsync in a thread share the next one. A thread also syncs after a rotation of the journal,
and if the journal's next file is due: both take longer. It also does an fsync that no writer waits for.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Protocol

import trio

from tailrace.errors import NotDurable, TailraceError
from tailrace_server.host.clock import Clock
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.workers import Workers

# An fsync of at most INLINE_BYTES_MAX is done on the loop, while it usually takes less than INLINE_SECONDS_MAX.
INLINE_SECONDS_MAX = 0.001
INLINE_BYTES_MAX = 64 * 1024
# A write that is waited for at level `memory` only is made durable within this time, together with other writes.
LAZY_SECONDS = 0.005
# After this time without other writers, a writer need not wait for them.
ALONE_SECONDS = 0.002
# The most passes of the loop for which an fsync waits for the writes of others.
GATHER_PASSES_MAX = 8
# The number of small fsyncs that tell how fast the disk is: eight slow ones move the next to a thread.
_DURATIONS = 15


class Syncable(Protocol):
    """The part of a journal that the committer uses; lsns grow over all files."""

    @property
    def written(self) -> int: ...

    @property
    def synced(self) -> int: ...

    @property
    def is_next_due(self) -> bool: ...

    def sync(self) -> None: ...


class Committer:
    """Makes a journal durable, and tells its partitions and the waiting writers. A node has one."""

    def __init__(self, journal: Syncable, clock: Clock, workers: Workers) -> None:
        self._journal = journal
        self._clock = clock
        self._workers = workers
        self._waiting: collections.deque[tuple[int, Partition, int]] = collections.deque()
        self._answers: collections.deque[tuple[int, Callable[[TailraceError | None], None]]] = collections.deque()
        self._wanted = trio.Event()
        self._urgent = False
        self._syncing = False
        self._began_at = 0.0  # of the fsync under way
        self._last_asker: object = None
        self._asked_at = 0.0
        self._durations: collections.deque[float] = collections.deque(maxlen=_DURATIONS)
        self.usual_sync_seconds = 0.0  # the median of the last small fsyncs
        self.failure: NotDurable | None = None
        self.syncs = 0
        self.on_sync: Callable[[], None] = _nothing  # called before each fsync
        self.on_committed: Callable[[], None] = _nothing  # called after each fsync, or its failure
        self.on_progress: Callable[[], None] = _nothing  # called when partitions were told, and when writers were

    def note(self, partition: Partition) -> None:
        """Notes that ``partition`` has just been written to, up to its high seq."""
        self._waiting.append((self._journal.written, partition, partition.high_seq))

    def when_durable(self, callback: Callable[[TailraceError | None], None]) -> None:
        """Calls ``callback(None)`` once all that is written now is durable, or with the error that prevents it.

        The partitions are told first, also if a thread or a rotation of the journal has synced already.
        """
        if self.failure is not None:
            callback(self.failure)
        elif self._journal.synced >= self._journal.written and not self._waiting:
            callback(None)
        else:
            self._answers.append((self._journal.written, callback))
            self._urgent = True

    def hurry(self) -> None:
        """Begins an fsync as soon as the loop is free, because a writer waits for it."""
        if not self._urgent and not self._is_settled:
            self._urgent = True

    @property
    def _is_settled(self) -> bool:
        """True if all is durable, and every partition and writer was told. A rotation may sync without telling them."""
        return self._journal.synced >= self._journal.written and not (self._waiting or self._answers)

    def turn_ended(self, asker: object) -> None:
        """Notes that ``asker``, a connection or None, has nothing more to write for now.

        If it has been the only writer lately, an fsync begins at once. Otherwise the fsync begins after the other
        writers of this pass of the loop, which share it.
        """
        journal = self._journal
        if not (self._answers or self._waiting) and journal.synced >= journal.written:  # as `_is_settled`, most often
            return
        if self._syncing or self.failure is not None:
            return
        if not self._urgent:
            self._wanted.set()
            return
        now = self._clock.monotonic()
        alone = asker is self._last_asker or now - self._asked_at > ALONE_SECONDS
        self._last_asker, self._asked_at = asker, now
        if alone and self._is_cheap():
            self._commit_here(now)
        else:
            self._wanted.set()

    def is_alone(self, asker: object, now: float) -> bool:
        """Returns whether `turn_ended` will sync at once for ``asker``, which is about to write a row and to wait."""
        if self._syncing or self._answers or (asker is not self._last_asker and now - self._asked_at <= ALONE_SECONDS):
            return False
        return self._is_cheap()

    def busy_s(self, now: float) -> float:
        """Returns how long the fsync under way has taken so far; 0 if there is none."""
        return now - self._began_at if self._syncing else 0.0

    async def run(self) -> None:
        """Commits until an fsync fails. After that, nothing more is acknowledged at `disk`."""
        while self.failure is None:
            await self._wanted.wait()
            if not self._urgent:
                with trio.move_on_after(LAZY_SECONDS):
                    while not self._urgent:
                        self._wanted = trio.Event()
                        await self._wanted.wait()
            await self._gather()
            self._wanted = trio.Event()
            if self.failure is None:  # a writer that was alone may have begun an fsync meanwhile, which failed
                await self.commit()

    async def _gather(self) -> None:
        """Waits as long as each pass of the loop brings more writes: they share the fsync, and a message to replicas.

        While the disk is slow, writes gather during the fsync before.
        """
        for _ in range(GATHER_PASSES_MAX):
            written = self._journal.written
            if not self._is_cheap():
                return
            await trio.lowlevel.checkpoint()
            if self._journal.written == written:
                return

    async def commit(self) -> None:
        """Does one fsync, if not everything is durable, and tells partitions and writers.

        If no writer waits for it, it is done in a thread: on the loop's thread a write at `memory` would wait for it.
        """
        if self._urgent and self._is_cheap():
            self._commit_here(self._clock.monotonic())
            return
        self._urgent, self._syncing = False, True
        self._began_at = self._clock.monotonic()
        self.on_sync()
        small = self._journal.written - self._journal.synced <= INLINE_BYTES_MAX
        try:
            # A cancellation waits for it: the file must not be closed while a thread syncs it.
            seconds = await self._workers.in_own_thread(self._timed_sync)
        except NotDurable as error:
            self._fail(error)
        except BaseException:
            self._syncing = False  # cancelled before the thread began: a later one may sync
            raise
        else:
            self._tell()
            if small:
                self._note_duration(seconds)

    def _is_cheap(self) -> bool:
        journal = self._journal
        if journal.is_next_due or journal.written - journal.synced > INLINE_BYTES_MAX:
            return False
        return self.usual_sync_seconds <= INLINE_SECONDS_MAX

    def _commit_here(self, now: float) -> None:
        """Commits on the loop's thread."""
        self._urgent = False
        self.on_sync()
        try:
            self._journal.sync()
        except NotDurable as error:
            self._fail(error)
            return
        seconds = self._clock.monotonic() - now
        self._tell()
        self._note_duration(seconds)

    def _timed_sync(self) -> float:
        """Returns the seconds of the fsync alone, without the thread's waiting before and after it."""
        started = self._clock.monotonic()
        self._journal.sync()
        return self._clock.monotonic() - started

    def _note_duration(self, seconds: float) -> None:
        """Notes how long a small fsync took."""
        durations = self._durations
        durations.append(seconds)
        self.usual_sync_seconds = sorted(durations)[len(durations) // 2]

    def _tell(self) -> None:
        """Tells partitions and writers after an fsync that succeeded."""
        self._syncing = False
        self.syncs += 1
        synced, waiting, answers = self._journal.synced, self._waiting, self._answers
        if len(waiting) == 1 and waiting[0][0] <= synced:
            _, partition, seq = waiting.popleft()
            partition.durable_through(seq)
        elif waiting:
            durable: dict[Partition, int] = {}
            while waiting and waiting[0][0] <= synced:
                _, partition, seq = waiting.popleft()
                durable[partition] = seq
            for partition, seq in durable.items():
                partition.durable_through(seq)
        self.on_progress()
        if answers and answers[0][0] <= synced:
            while answers and answers[0][0] <= synced:
                answers.popleft()[1](None)
            self.on_progress()
        self.on_committed()
        if answers:  # also if no partition waits: control records have none, as that of a new feed
            self.hurry()
        if waiting or answers:
            self._wanted.set()

    def _fail(self, error: NotDurable) -> None:
        """Tells all waiting writers that the outcome of their writes is unknown."""
        self.failure, self._syncing = error, False
        while self._answers:
            self._answers.popleft()[1](error)
        self.on_committed()
        self.on_progress()


def _nothing() -> None:
    """Does nothing, until the owner sets a callback."""
