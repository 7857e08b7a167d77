"""The writes of a session: blocks in their lanes, and single rows on their way into blocks. Pure.

    put, delete without a condition ──> row ──alone──> block of one row ──┐
                                         └──several──> block of a bundle ──┤──> lane
    write, put with a condition ──────────────────────> block ────────────┘

Rows that many tasks put at once leave as one block. It costs both sides little more than one row does.

1. Rows leave in the order of their calls. A block for the same lane ends the bundle before it.
2. A row whose caller is gone leaves its bundle before the bundle is sent, and before it is sent again.
3. A bundle that is refused for good is divided: each row is sent alone, in the place of the bundle, and has its own
   answer. If the bundle may have been written, all of its rows have the error instead, because a second copy of them
   could be written.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from tailrace.block import Block, encode_block, encode_row
from tailrace.errors import OutcomeUnknown, ProtocolError, Retryable, TailraceError
from tailrace.model import Level, VersionRange
from tailrace.requests.lane import DONE, QUEUED, SENT, Done, Lane, WriteRequest
from tailrace.requests.request import given_up
from tailrace.wire.failures import OutOfOrder

# The rows of a bundle are bounded, and it ends with the row that brings its keys and values to this number of bytes. A
# short row then does not wait long for the bytes of others, and after an outage the node gets several smaller blocks.
BUNDLE_ROWS_MAX = 1_024
BUNDLE_BYTES_MAX = 256 * 1024
# Rows wait for the end of the turn of the loop if more than these are counted: the lanes with blocks without an answer,
# and such blocks of the row's own lane. With fewer, another turn for each row would cost more than it saves.
CROWDED_BLOCKS = 4
# If other rows follow those of the callers that an answer has woken, or fewer rows come, the callers do not put row
# after row. Rows then wait for the end of the turn, until it has been right so often.
DOUBTED_TURNS = 4


class RowWrite(WriteRequest):
    """A row on its way to the node. It waits for its lane, is the only row of a block, or one of a bundle."""

    __slots__ = ("bundle", "hash", "key", "value")

    def __init__(
        self,
        lane: Lane,
        key: bytes,
        value: bytes | None,
        hash_: int,
        level: Level | None,
        done: Done,
        deadline: float,
    ) -> None:
        # The fields of ``WriteRequest``, without another call for each row. ``block`` is made when it is alone.
        self.lane, self.level, self.done, self.deadline = lane, level, done, deadline
        self.key, self.value, self.hash = key, value, hash_
        self.flags = self.number = self.tries = 0
        self.if_version = self.span = None
        self.resend = self.withdrawn = False
        self.sent_at = 0.0
        self.state = QUEUED
        self.bundle: RowBundle | None = None

    def submit_alone(self) -> None:
        """Enters the lane as a block of its own."""
        self.be_alone(*self.lane.next_number)
        self.lane.submit(self)

    def be_alone(self, producer_id: int, number: int) -> None:
        """Makes a block of the row alone."""
        self.bundle = None
        self.block = encode_row(
            self.key,
            self.value,
            hash_=self.hash,
            partition=self.lane.partition,
            producer_id=producer_id,
            producer_seq=number,
        )

    def finish(self, versions: VersionRange | None, error: TailraceError | None) -> None:
        """Tells the caller the answer, outside of the lane."""
        self.bundle, self.state = None, DONE
        self.done(versions, error)


class RowBundle(WriteRequest):
    """The block of several rows of one lane and level."""

    __slots__ = ("_forms", "rows")

    def __init__(self, rows: list[RowWrite]) -> None:
        first = rows[0]
        super().__init__(
            first.lane, _block(rows, *first.lane.next_number), first.level, self._answered, first.deadline, 0, None
        )
        self.rows = rows  # that have no answer, and whose callers wait
        self._forms: dict[int, list[RowWrite]] = {}  # the rows of each block that was sent; later ones have fewer
        for row in rows:
            row.bundle = self

    def sent(self) -> None:
        """Notes that the block is sent now. Leaves out the rows that have gone since the block was made."""
        header = self.block.header
        if len(self.rows) < header.rows:
            self.block = _block(self.rows, header.producer_id, header.producer_seq)
        self._forms[len(self.rows)] = self.rows.copy()

    def fits(self, versions: VersionRange) -> bool:
        """Tells whether the number of versions is that of the rows of a sent block."""
        return versions.first_seq > 0 and versions.last_seq - versions.first_seq + 1 in self._forms

    def leave(self, row: RowWrite) -> bool:
        """Takes out a row that is given up, or whose caller is gone. Returns whether other rows are left."""
        self.rows.remove(row)
        row.state = DONE
        return bool(self.rows)

    def is_divided_by(self, error: TailraceError) -> bool:
        """Tells whether ``error`` refuses the block for good, while rows wait and none was written."""
        return bool(self.rows) and not (self.resend or isinstance(error, Retryable | OutcomeUnknown | OutOfOrder))

    def divide(self) -> None:
        """Puts each row, as a block of its own, in the place of the block."""
        rows, self.rows = self.rows, []
        self.done = _ignore  # as in ``_answered``
        producer_id, _ = self.lane.next_number
        for number, row in enumerate(rows, self.number):
            row.be_alone(producer_id, number)
        self.lane.divide(self, rows)

    def _answered(self, versions: VersionRange | None, error: TailraceError | None) -> None:
        rows, self.rows = self.rows, []
        self.done = _ignore  # without the circle the bundle is freed at once
        if versions is not None:
            waiting = set(rows)
            partition, branch, first_seq, last_seq = versions
            for seq, row in enumerate(self._forms[last_seq - first_seq + 1], first_seq):
                if row in waiting:
                    row.finish(tuple.__new__(VersionRange, (partition, branch, seq, seq)), None)
            return
        for row in rows:
            row.finish(None, copy.copy(error))  # each caller raises its own


class WriteQueue:
    """Holds the writes of all lanes, and decides which of them leave now.

    Attributes:
        gathers: Other callers may put rows in this turn of the shell's loop: their answers came together, many wait, or
            the rows before left together.
    """

    def __init__(self) -> None:
        self._lanes: dict[Lane, None] = {}  # with requests
        self._ready: dict[Lane, None] = {}  # those that may have something to send
        self._rows: dict[Lane, list[RowWrite]] = {}  # rows that wait for room in their lane
        self._woken = 0  # callers of rows that the last bytes have answered, and that have put no other one since
        self._is_last = False  # the last row was that of the last one of these callers
        self._doubts = 0  # turns until rows leave with that row, which others have followed or which did not come
        self._left_together = False  # when rows were last taken, or had no room, there were several, of any lanes
        self.gathers = False

    @property
    def is_idle(self) -> bool:
        """No write waits for an answer."""
        return not self._lanes and not self._rows

    @property
    def is_holding(self) -> bool:
        """A write waits to be sent, or to be sent again."""
        return bool(self._ready or self._rows)

    def expect_none(self) -> None:
        """Forgets the callers that earlier bytes have woken."""
        if self._woken:
            self._doubts = DOUBTED_TURNS
        elif self._is_last and self._doubts:
            self._doubts -= 1
        self._woken, self._is_last, self.gathers = 0, False, False

    def requests(self) -> Iterator[WriteRequest]:
        """Yields the writes without an answer as their callers made them, each lane's in order."""
        for lane in self._lanes:
            for request in lane.requests():
                if isinstance(request, RowBundle) and request.rows:
                    yield from request.rows
                else:
                    yield request
        for rows in self._rows.values():
            yield from rows

    @property
    def first(self) -> list[WriteRequest]:
        """The write of each lane that has waited longest."""
        waiting = [rows[0] for lane, rows in self._rows.items() if not lane]
        return [*(lane.first for lane in self._lanes if lane), *waiting]

    def add(self, request: WriteRequest) -> None:
        """Adds a block at the end of its lane."""
        lane = request.lane
        if lane in self._rows:
            self._submit(lane)
        lane.submit(request)
        self._lanes[lane] = self._ready[lane] = None

    def add_alone(self, row: RowWrite) -> None:
        """Adds a row that has to be a block of its own, as one with a span."""
        if row.lane in self._rows:
            self._submit(row.lane)
        row.submit_alone()
        self._lanes[row.lane] = self._ready[row.lane] = None

    def add_row(self, row: RowWrite) -> None:
        """Adds a row, which leaves with the others that wait for the same lane."""
        if self._woken:  # it is known how many callers may follow
            self._woken -= 1
            self._is_last = not self._woken
            self.gathers = not self._is_last or (self._doubts > 0 and self._left_together)
        else:
            if self._is_last:
                self._is_last, self._doubts = False, DOUBTED_TURNS
            self.gathers = self._left_together
        lanes = len(self._lanes)
        self.gathers |= lanes > 0 and lanes + len(row.lane) > CROWDED_BLOCKS
        rows = self._rows.get(row.lane)
        if rows is None:
            self._rows[row.lane] = [row]
        else:
            rows.append(row)

    def take(self, now: float) -> list[WriteRequest]:
        """Returns the blocks to send now, with their numbers. They count as sent."""
        self.gathers = False
        if self._rows:
            if len(self._rows) == 1 and not self._ready and (row := self._take_alone(now)) is not None:
                return [row]
            self._left_together = sum(map(len, self._rows.values())) > 1
        for lane in list(self._rows):
            if lane not in self._lanes or lane.has_room:
                self._submit(lane)
        taken: list[WriteRequest] = []
        for lane in list(self._ready):
            of_lane = lane.take(now)
            if not of_lane and not lane:  # all of it was given up
                self._lanes.pop(lane, None)
            if not lane.is_held:
                self._ready.pop(lane, None)
            taken += of_lane
        for request in taken:
            if isinstance(request, RowBundle):
                request.sent()
        return taken

    def _take_alone(self, now: float) -> RowWrite | None:
        """Takes a row that nothing is before or beside, the most frequent case, in fewer steps. None: it is another."""
        ((lane, rows),) = self._rows.items()
        if len(rows) > 1 or lane in self._lanes or (numbers := lane.next_if_alone(now)) is None:
            return None
        row = rows[0]
        row.be_alone(*numbers)
        lane.sent_alone(row, now)
        self._rows.clear()
        self._lanes[lane] = None
        self._left_together = False
        return row

    def numbers_alone(self, lane: Lane, now: float) -> tuple[int, int] | None:
        """Returns the producer id and number of a row that could be sent now, with no other write before or beside it.

        Then ``add_sent`` has the effect of ``add_row`` and ``take``, in fewer steps. None: these have to do it.
        """
        if self._lanes or self._rows or self._woken > 1 or (self._left_together and (self._doubts or not self._woken)):
            return None
        return lane.next_if_alone(now)

    def add_sent(self, row: RowWrite, now: float) -> None:
        """Adds a row with the numbers of ``numbers_alone``, which is sent at the same ``now``."""
        if self._woken:
            self._woken, self._is_last = 0, True
        elif self._is_last:
            self._is_last, self._doubts = False, DOUBTED_TURNS
        self.gathers = self._left_together = False
        row.lane.sent_alone(row, now)
        self._lanes[row.lane] = None

    def answered_alone(self, row: RowWrite, versions: VersionRange) -> bool:
        """Does ``expect_none`` and ``answered`` for a row that is all that waits. False: nothing has happened."""
        lane, (partition, _, first_seq, last_seq) = row.lane, versions
        if row.state is not SENT or row.withdrawn or self._rows or self._ready or len(self._lanes) != 1:
            return False
        if partition != lane.partition or not first_seq or first_seq != last_seq:
            return False
        if not lane.answered_alone(row, versions):
            return False
        self.expect_none()
        self._woken = 1
        self._lanes.clear()
        return True

    def _submit(self, lane: Lane) -> None:
        """Enters the waiting rows of a lane, as blocks."""
        rows = self._rows.pop(lane)
        if len(rows) == 1:
            rows[0].submit_alone()
        else:
            for bundle in _bundles(rows):
                if len(bundle) == 1:
                    bundle[0].submit_alone()
                else:
                    lane.submit(RowBundle(bundle))
        self._lanes[lane] = self._ready[lane] = None

    # Answers and ends

    def answered(self, request: WriteRequest, versions: VersionRange) -> None:
        """The node has written ``request``. Raises ProtocolError if these cannot be the versions of its rows."""
        if request.state is DONE:
            return  # it was given up meanwhile
        is_right = versions.partition == request.lane.partition and versions.first_seq <= versions.last_seq
        if isinstance(request, RowBundle):
            is_right = is_right and request.fits(versions)
            self._woken += len(request.rows)
        elif isinstance(request, RowWrite):
            self._woken += 1
        if not is_right:
            raise ProtocolError(f"the answer to a WRITE to partition {request.lane.partition} is {versions}")
        request.lane.answered(request, versions)
        self._look_again(request.lane)

    def refused(self, request: WriteRequest, error: TailraceError, hold_until: float, *, in_doubt: bool) -> None:
        """The node does not write ``request``, as `Lane.refused`."""
        if request.state is DONE:
            return  # it was given up meanwhile
        if isinstance(request, RowBundle) and request.is_divided_by(error):
            request.divide()
        else:
            request.lane.refused(request, error, hold_until, in_doubt=in_doubt)
        self._look_again(request.lane)

    def link_lost(self) -> None:
        """The connection is lost: writes without an answer are sent again."""
        for lane in self._lanes:
            lane.link_lost()
        self._ready = dict(self._lanes)

    def withdraw(self, request: WriteRequest) -> None:
        """Gives up a write whose caller is gone, without an answer. No-op if it has one."""
        if isinstance(request, RowWrite):
            if self._take_out(request):
                return
            request = request.bundle or request
        request.lane.withdraw(request)
        self._look_again(request.lane)

    def _take_out(self, row: RowWrite) -> bool:
        """Takes a row out of those that wait, or out of its bundle. Returns False if more has to be done.

        That is so for a row that is alone in its lane, and for the last one of a bundle.
        """
        if row.state is DONE:
            return True
        rows = self._rows.get(row.lane, [])
        if row in rows:
            rows.remove(row)
            if not rows:
                del self._rows[row.lane]
            row.state = DONE
            return True
        if row.bundle is None:
            return False
        return row.bundle.leave(row)

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the writes of ``lane`` that were not sent, and sends none of the others again."""
        for request in [request for request in self.requests() if request.lane is lane]:
            self.withdraw(request)

    def expire(self, now: float, last_error: TailraceError | None) -> None:
        """Gives up the writes whose deadline has passed. ``last_error`` is that of the connection, or None."""
        if not (self._lanes or self._rows):
            return
        for request in [request for request in self.requests() if now >= request.deadline]:
            sent = (request.bundle or request) if isinstance(request, RowWrite) else request
            error = given_up(last_error, sent.state is SENT or sent.resend)
            if not isinstance(request, RowWrite):
                self._fail(request, error)
            elif self._take_out(request):
                request.finish(None, error)
            elif sent is request:
                self._fail(request, error)
            else:
                request.finish(None, error)
                self._fail(sent, error)

    def _fail(self, request: WriteRequest, error: TailraceError) -> None:
        request.lane.fail(request, error)
        self._look_again(request.lane)

    def fail_all(self, error: TailraceError) -> None:
        """Completes all writes with ``error``."""
        waiting, self._rows = self._rows, {}
        for lane in list(self._lanes):
            for request in lane.requests():
                lane.fail(request, error)
        for rows in waiting.values():
            for row in rows:
                row.finish(None, error)
        self._lanes.clear()
        self._ready.clear()

    def postpone(self, seconds: float) -> None:
        """Moves all deadlines by ``seconds``, during which the program has moved no bytes."""
        for request in self.requests():
            request.deadline += seconds

    def _look_again(self, lane: Lane) -> None:
        """Notes that ``lane`` has changed: it may have a block to send, or be empty."""
        if lane:
            self._lanes[lane] = self._ready[lane] = None
        else:
            self._lanes.pop(lane, None)
            self._ready.pop(lane, None)


def _bundles(rows: list[RowWrite]) -> Iterator[list[RowWrite]]:
    """Yields rows of a lane in bundles that have one level each, and keep the bounds."""
    bundle: list[RowWrite] = []
    nbytes = 0
    for row in rows:
        if bundle and (
            row.level is not bundle[0].level or len(bundle) >= BUNDLE_ROWS_MAX or nbytes >= BUNDLE_BYTES_MAX
        ):
            yield bundle
            bundle, nbytes = [], 0
        bundle.append(row)
        nbytes += len(row.key) + len(row.value or b"")
    yield bundle


def _block(rows: list[RowWrite], producer_id: int, number: int) -> Block:
    return encode_block(
        [row.key for row in rows],
        [row.value for row in rows],
        partition=rows[0].lane.partition,
        producer_id=producer_id,
        producer_seq=number,
        hashes=[row.hash for row in rows],
    )


def _ignore(versions: VersionRange | None, error: TailraceError | None) -> None:
    """Takes the answer to a bundle that has it already, or no rows."""
