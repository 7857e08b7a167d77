"""Rows on their way from the calls of a writer or a stage to the node, within a bound of bytes. Pure.

    add, extend ──> batch of the partition ──ship──> block in flight ──answer──> settled

Four rules:

1. A row enters its partition's batch or the caller keeps it; a batch becomes a block in one step, which never waits. So
   rows of a partition leave in the order in which they were added, and no cancelled caller takes any of them along.
2. Callers wait before they add a row, never after it. ``nbytes`` counts rows without an answer, in batches and in
   flight, before compression. It exceeds ``bytes_max`` by one row at most.
3. Batches have at most half of ``bytes_max``; beyond that the largest one becomes a block. So a caller that waits for
   room has blocks in flight to wait for.
4. The first error is final. It ends every wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from tailrace.block import Block
from tailrace.errors import TailraceError, WritesLost
from tailrace.model import Delete, Put
from tailrace.requests.batch import Batches, PartitionShare, split
from tailrace.requests.plain_rows import PlainRows

# Called with the answer to a block: None, or the error.
Settle: TypeAlias = Callable[[TailraceError | None], None]


class Batching(NamedTuple):
    """The bytes and rows at which a batch is sent, and the bytes without an answer at which calls wait."""

    batch_bytes: int
    batch_rows: int
    in_flight_bytes: int
    kind: Callable[..., Outbox] | None = None  # makes another outbox in place of an `Outbox`

    def outbox(
        self,
        partitions: int,
        send: Callable[[Block, Settle], None],
        kick: Callable[[], None],
        on_change: Callable[[], None],
    ) -> Outbox:
        """Returns an outbox with these bounds; the other arguments are those of `Outbox`."""
        return (self.kind or Outbox)(
            partitions,
            batch_bytes=self.batch_bytes,
            batch_rows=self.batch_rows,
            bytes_max=self.in_flight_bytes,
            send=send,
            kick=kick,
            on_change=on_change,
        )


class Outbox:
    """See the module.

    ``send`` queues a block and calls its second argument once, with the answer. ``kick`` sends the queued blocks.
    ``on_change`` is called when waiting callers have to look again.
    """

    _takes_plain_rows = True  # without a look at them

    def __init__(
        self,
        partitions: int,
        *,
        batch_bytes: int,
        batch_rows: int,
        bytes_max: int,
        send: Callable[[Block, Settle], None],
        kick: Callable[[], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._partitions = partitions
        self._batches = Batches(partitions, batch_bytes, batch_rows)
        self._bytes_max = bytes_max
        self._send = send
        self._kick = kick
        self._on_change = on_change
        self._in_flight: dict[int, int] = {}  # bytes of each block without an answer, by its number
        self._in_flight_bytes = 0
        self._shipped = 0  # the last block's number
        self._batched_bytes_max = 0
        self._error: TailraceError | None = None
        self._why_closed = ""
        self._is_shipping = False
        # False: the next caller has to ``enter`` before it adds. Checked for each row, so it is a plain attribute.
        self.is_open = True
        # If it is there, plain rows may be added to it in place of ``add``; only while ``is_open``.
        self.plain: PlainRows | None = None
        self._is_plain = partitions == 1 and self._takes_plain_rows
        self._set_limit()

    # Adding

    def add(self, key: bytes, value: bytes | None, ttl: int | None = None) -> None:
        """Adds a row, when ``is_open``. Raises TypeError, ValueError or TooLarge for a bad row; nothing is added."""
        self.plain = None
        full = self._batches.add(key, value, ttl)
        if full is not None:
            self._ship(full)
        elif self._batches.nbytes > self._batched_bytes_max:
            self._relieve()
        elif self._is_plain and self.is_open:
            self.plain = self._batches.plain(self._batched_bytes_max)

    def shares(self, changes: Sequence[Put | Delete]) -> list[PartitionShare]:
        """Checks changes and divides them for ``extend``. Raises TypeError, ValueError or TooLarge."""
        return [PartitionShare(rows) for rows in split(changes, self._partitions)]

    def extend_all(self, changes: Sequence[Put | Delete], added: Callable[[], None]) -> Iterator[None]:
        """Adds changes, as many at a time as there is room for. Yields each time that the caller has to ``enter``.

        ``added`` is called before that, and at the end.

        Raises TypeError, ValueError or TooLarge before the first one is added, and the first error.
        """
        self.check()
        for share in self.shares(changes):
            while not share.is_taken:
                if not self.is_open:
                    added()
                    yield
                self.extend(share)
        added()

    def extend(self, share: PartitionShare) -> None:
        """Adds rows of ``share``, when ``is_open``: as many as its batch and the bound have room for."""
        self.plain = None
        if self._batches.extend(share, self._bytes_max - self._in_flight_bytes + 1):
            self._ship(share.rows.partition)
        elif self._batches.nbytes > self._batched_bytes_max:
            self._relieve()

    def ship_all(self) -> None:
        """Makes a block of every batch, however small."""
        self._ship(*self._batches.partitions)

    def ship_block(self, block: Block, send: Callable[[Block, Settle], None]) -> None:
        """Sends a block that the caller has made, by ``send`` in place of the outbox's own."""
        self._begin_to_ship()
        self._put_in_flight(block, block.nbytes, send)
        self._kick()

    # Waiting

    @property
    def nbytes(self) -> int:
        """Bytes that were added and have no answer: keys, values, and the overhead of each row and block."""
        self._batches.count()
        return self._batches.nbytes + self._in_flight_bytes

    @property
    def has_room(self) -> bool:
        """A row may be added, or the outbox is closed, or ``check`` raises."""
        return self.nbytes <= self._bytes_max or self.has_failed or bool(self._why_closed)

    def enter(self, *, others_wait: bool = False) -> None:
        """Ends a wait for room. Raises the first error, or ValueError after ``close``.

        ``others_wait``: waiting callers come before new ones, so ``is_open`` stays False.
        """
        self.check()
        if self._why_closed:
            raise ValueError(self._why_closed)
        self.is_open = self.has_room and not others_wait

    @property
    def unanswered(self) -> int:
        """Blocks without an answer."""
        return len(self._in_flight)

    @property
    def shipped(self) -> int:
        """The number of blocks until now, for ``is_settled``."""
        return self._shipped

    def is_settled(self, shipped: int) -> bool:
        """Tells whether the first ``shipped`` blocks have their answers, or ``check`` raises."""
        return self.has_failed or not self._in_flight or next(iter(self._in_flight)) > shipped

    @property
    def has_failed(self) -> bool:
        """``check`` raises: for an error, or for a block that an interrupt has kept from the session.

        Such a block is in flight, and has no answer to wait for.
        """
        return self._error is not None or self._is_shipping

    def check(self) -> None:
        """Raises the first error."""
        if self._is_shipping:
            self.fail(
                TailraceError(
                    "a call was interrupted while it added or sent rows, which may or may not be sent: "
                    "make another writer or stage"
                )
            )
            self._is_shipping = False  # only now: another interrupt could come before the error is kept
        if self._error is not None:
            raise self._error

    def fail(self, error: TailraceError) -> None:
        """Makes ``error`` the first error unless there is one. WritesLost replaces any other, because it tells more."""
        if self._error is None or isinstance(error, WritesLost):
            self._error = error
        self._shut()
        self._on_change()

    def refuse(self, error: TailraceError) -> None:
        """Makes ``error`` the first error, and wakes no caller."""
        self._shut()
        self._error, self._is_shipping = error, False

    def heard(self, error: TailraceError | None) -> None:
        """Handles an answer: wakes waiting callers, with ``error`` if there is one."""
        if error is not None:
            self.fail(error)
        else:
            self._on_change()

    def close(self, why: str) -> None:
        """Takes no more rows: ``enter`` raises ValueError with ``why``. Rows that were added are still sent."""
        self._why_closed = self._why_closed or why
        self._shut()
        self._on_change()

    # Blocks

    def _relieve(self) -> None:
        """Restores the bounds after a row was added."""
        while self._batches.nbytes > self._bytes_max // 2:
            self._ship(self._batches.largest)
        if self.nbytes > self._bytes_max:
            self._shut()

    def _ship(self, *partitions: int) -> None:
        for partition in partitions:
            self._begin_to_ship()
            self._batches.count()
            before = self._batches.nbytes
            rows = self._batches.take(partition)
            if not rows.is_whole:
                self.check()
            self._put_in_flight(rows.encode(), before - self._batches.nbytes, self._send)
        if partitions:
            self._kick()

    def _begin_to_ship(self) -> None:
        """Marks that a block leaves. An interrupt (Ctrl-C) in between must not pass for success: the mark stays.

        The next call may be one that does not check: a thread that adds while ``is_open``. So this looks, too.
        """
        if self._is_shipping:
            self.check()
        self._is_shipping, self.plain = True, None

    def _put_in_flight(self, block: Block, nbytes: int, send: Callable[[Block, Settle], None]) -> None:
        self._shipped += 1
        number = self._shipped
        self._in_flight[number] = nbytes
        self._in_flight_bytes += nbytes
        self._set_limit()
        self._shut()  # other tasks get their turn after each block

        def settle(error: TailraceError | None) -> None:
            del self._in_flight[number]
            self._in_flight_bytes -= nbytes
            self._set_limit()
            self.heard(error)

        try:
            send(block, settle)
        except TailraceError as error:
            self.fail(error)
            self._is_shipping = False
            raise
        self._is_shipping = False

    def _shut(self) -> None:
        """Has the next caller ``enter`` before it adds."""
        self.is_open, self.plain = False, None

    def _set_limit(self) -> None:
        """Sets the bytes of batches above which ``_relieve`` is called."""
        self._batched_bytes_max = min(self._bytes_max // 2, self._bytes_max - self._in_flight_bytes)
