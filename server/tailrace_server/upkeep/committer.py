"""Group commit: one fsync answers every write that arrived before it began.

    take ── note ──> [ waiting: (lsn, partition, last seq) ]      when_durable ──> [ answers: (lsn, callback) ]
                                        │
                     sync, on the loop or in a thread: everything up to `written`
                                        │
              partition.durable_through (streams send)   then   answers in the order of their lsns

The streams go before the answers: a consumer has nothing to wait for, a writer has just been waiting.

On the loop's thread an fsync saves a hop of two threads (about 0.1 ms), and stops everything else meanwhile; so it is
done there only while the disk is fast and little is waiting. Fast is what the median of the last small fsyncs says: one
in twenty takes ten times as long on a disk that others use too, which would drag a mean along for a long time. Writes
that arrive during an fsync in a thread share the next one.
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

# On the loop: while an fsync of so little usually takes less than this.
INLINE_SECONDS_MAX = 0.001
INLINE_BYTES_MAX = 64 * 1024
# What only level `memory` waits for is made durable within this, together with whatever else comes.
LAZY_SECONDS = 0.005
# A writer who has been the only one for this long need not wait for others.
ALONE_SECONDS = 0.002
# So many small fsyncs tell how fast the disk is: it has to be slow for eight before they move to a thread.
_DURATIONS = 15


class Syncable(Protocol):
    """What the committer needs of a journal; positions (lsn) are bytes written over all files."""

    @property
    def written(self) -> int: ...

    @property
    def synced(self) -> int: ...

    def sync(self) -> None: ...


class Committer:
    """Makes a journal durable and tells whom it concerns. One a node."""

    def __init__(self, journal: Syncable, clock: Clock, workers: Workers) -> None:
        self._journal = journal
        self._clock = clock
        self._workers = workers
        self._waiting: collections.deque[tuple[int, Partition, int]] = collections.deque()
        self._answers: collections.deque[tuple[int, Callable[[TailraceError | None], None]]] = collections.deque()
        self._wanted = trio.Event()
        self._urgent = False
        self._syncing = False
        self._last_asker: object = None
        self._asked_at = 0.0
        self._durations: collections.deque[float] = collections.deque(maxlen=_DURATIONS)
        self.usual_sync_seconds = 0.0  # the median of the last small fsyncs
        self.failure: NotDurable | None = None
        self.syncs = 0
        self.on_committed: Callable[[], None] = _nothing

    def note(self, partition: Partition) -> None:
        """``partition`` has just been written to, up to its high seq."""
        self._waiting.append((self._journal.written, partition, partition.high_seq))

    def when_durable(self, callback: Callable[[TailraceError | None], None]) -> None:
        """Calls ``callback(None)`` once all that is written now is durable, or with the error that prevents it.

        The partitions know by then. (A thread that has just synced, or a rotation of the journal, tells them later.)
        """
        if self.failure is not None:
            callback(self.failure)
        elif self._journal.synced >= self._journal.written and not self._waiting:
            callback(None)
        else:
            self._answers.append((self._journal.written, callback))
            self._urgent = True

    def hurry(self) -> None:
        """Someone waits for what has been written: begin an fsync as soon as the loop is free."""
        if not self._is_settled:
            self._urgent = True

    @property
    def _is_settled(self) -> bool:
        """All is durable, and everybody knows. A rotation of the journal makes things durable that nobody has told."""
        return self._journal.synced >= self._journal.written and not (self._waiting or self._answers)

    def turn_ended(self, asker: object) -> None:
        """Whoever has been handled (a connection; None: nobody in particular) has nothing more to write for now.

        Where he alone has been writing lately, an fsync begins at once. Others who write in the same pass of the loop
        share it instead, and it begins after them.
        """
        if self._syncing or self.failure is not None or self._is_settled:
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

    async def run(self) -> None:
        """Commits for ever; ends after a failed fsync, from when on nothing more is acknowledged at `disk`."""
        while self.failure is None:
            await self._wanted.wait()
            if not self._urgent:
                with trio.move_on_after(LAZY_SECONDS):
                    while not self._urgent:
                        self._wanted = trio.Event()
                        await self._wanted.wait()
            self._wanted = trio.Event()
            await self.commit()

    async def commit(self) -> None:
        """One fsync, and what follows from it; nothing where everything is durable."""
        if self._is_cheap():
            self._commit_here(self._clock.monotonic())
            return
        self._urgent, self._syncing = False, True
        small = self._journal.written - self._journal.synced <= INLINE_BYTES_MAX
        try:
            # A cancellation waits for it: the file must not be closed while a thread syncs it.
            seconds = await self._workers.in_own_thread(self._timed_sync)
        except NotDurable as error:
            self._fail(error)
        else:
            self._tell()
            if small:
                self._note_duration(seconds)

    def _is_cheap(self) -> bool:
        waiting_bytes = self._journal.written - self._journal.synced
        return waiting_bytes <= INLINE_BYTES_MAX and self.usual_sync_seconds <= INLINE_SECONDS_MAX

    def _commit_here(self, now: float) -> None:
        """Commits on the loop's thread; what nobody waits for comes after what was waited for."""
        self._urgent = False
        try:
            self._journal.sync()
        except NotDurable as error:
            self._fail(error)
            return
        seconds = self._clock.monotonic() - now
        self._tell()
        self._note_duration(seconds)

    def _timed_sync(self) -> float:
        """The seconds of the fsync alone, without what a thread waits for before and after it."""
        started = self._clock.monotonic()
        self._journal.sync()
        return self._clock.monotonic() - started

    def _note_duration(self, seconds: float) -> None:
        """A small fsync took so long."""
        durations = self._durations
        durations.append(seconds)
        self.usual_sync_seconds = sorted(durations)[len(durations) // 2]

    def _tell(self) -> None:
        """An fsync has succeeded."""
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
        self.on_committed()
        if answers and answers[0][0] <= synced:
            while answers and answers[0][0] <= synced:
                answers.popleft()[1](None)
            self.on_committed()
        if answers:  # also without a partition that waits: for a control record, as that of a new feed
            self.hurry()
        if waiting or answers:
            self._wanted.set()

    def _fail(self, error: NotDurable) -> None:
        """Nothing that waits will ever be durable here: the outcome of every waiting write is unknown."""
        self.failure, self._syncing = error, False
        while self._answers:
            self._answers.popleft()[1](error)
        self.on_committed()


def _nothing() -> None:
    """Until the node says what is to be done."""
