"""One producer's blocks to one partition: numbered, in order, sent again until they are answered. Pure.

    submit ──> [queue] ──> SENT ──answer──> done
                            │  ^
           refused for now, │  │ when nothing of the lane is SENT any more:
        bounced, link lost  v  │ renumbered, in order, all at once
                           HELD

The node takes a producer's blocks in the order of their numbers, without a gap, and remembers its last 16 answers. So:

1. At most 16 blocks are unanswered.
2. A block refused for good frees its number; those after it bounce (out of order) and are sent again with numbers one
   lower, which keeps the order.
3. After a lost connection all unanswered blocks are sent again, flagged, under their old numbers: each is written once.
   A block that was sent more than half an hour ago is given up instead: the node forgets a producer after an hour.
4. A block that is withdrawn before it was sent is never sent. One that was sent keeps its number until its answer comes
   or the connection is lost; it is not sent again.
5. A block that is refused for good may be divided by rows. The parts take its place, before the blocks behind it.
6. If the node asks for a number that it has acknowledged, it has lost acknowledged writes with their level. The lane
   continues under a new producer id, and names the versions that were lost.

Source: docs/formats/block.md (producer id and seq).
"""

from __future__ import annotations

import collections
import enum
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tailrace.block import Block
from tailrace.errors import NotDurable, OutcomeUnknown, Retryable, TailraceError
from tailrace.model import Level, Version, VersionRange
from tailrace.wire.failures import OutOfOrder
from tailrace.wire.frames import frame_header
from tailrace.wire.messages import Write, WriteFlag
from tailrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from tailrace.tracing import BlockSpan

UNANSWERED_MAX = 16
# The numbers kept that the node may ask for again without a loss. Older ones were lost together with acknowledged ones.
ABANDONED_MAX = 4 * UNANSWERED_MAX
# A producer's numbers have 32 bits. After this one a lane takes a new producer id, once all blocks are answered. A put
# each 0.1 ms gets there in five days. Blocks that are divided by rows have room behind it.
NUMBER_MAX = 2**32 - 2**16
# The node forgets a producer after an hour without a block; half of that leaves room for slow clocks and long resends.
IDLE_SECONDS_MAX = 1800.0

Done = Callable[[VersionRange | None, TailraceError | None], None]


class WriteState(enum.Enum):
    QUEUED = "queued"
    SENT = "sent"
    HELD = "held"
    DONE = "done"


# As globals: an attribute of an Enum is slow to read, and each write needs some.
QUEUED, SENT, HELD, DONE = WriteState
_OPCODE = int(Opcode.WRITE)


class WriteRequest:
    """A block on its way to the node. ``done`` is called once, with the versions of its rows or with the error."""

    __slots__ = (
        "block",
        "deadline",
        "done",
        "flags",
        "if_version",
        "lane",
        "level",
        "number",
        "resend",
        "sent_at",
        "span",
        "state",
        "tries",
        "withdrawn",
    )

    def __init__(
        self,
        lane: Lane,
        block: Block,
        level: Level | None,
        done: Done,
        deadline: float,
        flags: int,
        if_version: Version | None,
    ) -> None:
        self.lane = lane
        self.block = block
        self.level = level
        self.flags = flags
        self.if_version = if_version
        self.done = done
        self.deadline = deadline
        self.number = 0
        self.resend = False
        self.sent_at = 0.0  # when it was sent first, of what may have been written
        self.state = QUEUED
        self.tries = 0
        self.withdrawn = False
        self.span: BlockSpan | None = None  # if the program traces, until the answer

    def encode(self, id: int, unnamed: int) -> bytes:
        """Returns the frame up to the block's body. ``unnamed`` is the level on the wire of a write that names none."""
        flags = self.flags | WriteFlag.RESEND if self.resend else self.flags
        level, head = unnamed if self.level is None else self.level, self.block.head
        start = Write.encode_fixed(self.lane.feed_id, level, flags, self.if_version) + head
        return frame_header(_OPCODE, len(start) + len(self.block.body), id) + start


class Lane:
    """See the module.

    ``new_producer_id`` returns random ids. ``on_lost`` is called with acknowledged versions that the node has lost.
    """

    def __init__(
        self,
        feed_id: bytes,
        partition: int,
        new_producer_id: Callable[[], int],
        on_lost: Callable[[list[VersionRange]], None] | None = None,
    ) -> None:
        self.feed_id = feed_id
        self.partition = partition
        self._new_producer_id = new_producer_id
        self._on_lost = on_lost
        self._producer_id = new_producer_id()
        self._next_number = 1
        self._queue: collections.deque[WriteRequest] = collections.deque()
        self._unanswered: list[WriteRequest] = []  # in order
        self._acknowledged: collections.deque[tuple[int, VersionRange]] = collections.deque(maxlen=2 * UNANSWERED_MAX)
        self._abandoned: set[int] = set()  # numbers of requests that were given up or withdrawn, and may be written
        self._anew = False  # a new producer id is taken as soon as nothing is in doubt
        self._used_at = float("inf")  # when something was last sent
        self.held_until = 0.0

    def __len__(self) -> int:
        return len(self._queue) + len(self._unanswered)

    def requests(self) -> list[WriteRequest]:
        """Returns the requests without an answer, in order."""
        return [*self._unanswered, *self._queue]

    @property
    def first(self) -> WriteRequest:
        """The request that waits longest. There has to be one."""
        return self._unanswered[0] if self._unanswered else self._queue[0]

    @property
    def is_held(self) -> bool:
        """A request waits to be sent again, or a part of one."""
        for request in self._unanswered:  # noqa: SIM110 - one write at a time is common, and any() is two calls more
            if request.state is not SENT:
                return True
        return False

    @property
    def has_room(self) -> bool:
        """A block that is submitted now would be sent at once, if there is a connection."""
        # Without unanswered ones it takes the new producer id at once.
        if (self._anew or self._next_number > NUMBER_MAX) and self._unanswered:
            return False
        return len(self) < UNANSWERED_MAX and not self.is_held

    @property
    def next_number(self) -> tuple[int, int]:
        """The producer id and number that the next block will most likely get. With them it need not be copied."""
        return self._producer_id, min(self._next_number + len(self._queue), NUMBER_MAX)

    def submit(self, request: WriteRequest) -> None:
        """Adds a block at the end."""
        self._queue.append(request)

    def next_if_alone(self, now: float) -> tuple[int, int] | None:
        """Returns the producer id and number of a block that would be all of the lane, and could be sent now.

        Then ``sent_alone`` has the effect of ``submit`` and ``take``, in fewer steps. None: these have to do it.
        """
        if self._queue or self._unanswered or self._anew or now - self._used_at > IDLE_SECONDS_MAX:
            return None
        return None if self._next_number > NUMBER_MAX else (self._producer_id, self._next_number)

    def sent_alone(self, request: WriteRequest, now: float) -> None:
        """Adds a block with the numbers of ``next_if_alone``, which is sent at the same ``now``."""
        request.number = self._next_number
        self._next_number += 1
        self._unanswered.append(request)
        self._used_at = request.sent_at = now
        request.state = SENT

    def answered_alone(self, request: WriteRequest, versions: VersionRange) -> bool:
        """Does ``answered`` for a block that was written, and is all of the lane. False: it is not."""
        if self._queue or self._unanswered != [request]:
            return False
        self._unanswered.clear()
        self._acknowledged.append((request.number, versions))
        request.state = DONE
        request.done(versions, None)
        return True

    def take(self, now: float) -> list[WriteRequest]:
        """Returns the blocks to send now, with their numbers. They count as sent."""
        if self._unanswered:
            if any(request.state is SENT for request in self._unanswered):
                if self._anew or self.is_held:
                    return []
                self._used_at = now
                return self._take_queued(now)
            if now < self.held_until:
                return []
            self._requeue()
            self._give_up_aged(now)
        is_over = now - self._used_at > IDLE_SECONDS_MAX or self._next_number > NUMBER_MAX
        # A block that may have been written keeps its old number: under a new one it could be written twice.
        if (is_over and not self._unanswered) or (
            self._anew and not any(request.resend for request in self._unanswered)
        ):
            self._begin_anew()
        self._used_at = now
        again = self._unanswered.copy() if self._unanswered else []
        for request in again:
            self._send(request, now)
        return again if self._anew else again + self._take_queued(now)

    def _requeue(self) -> None:
        """Returns the parts of a divided block, and all blocks behind them, to the queue.

        None of these was written, whatever their answers were: the number of the first part has not been taken.
        """
        places = (place for place, request in enumerate(self._unanswered) if request.state is QUEUED)
        first = next(places, None)
        if first is None:
            return
        behind = self._unanswered[first:]
        del self._unanswered[first:]
        self._next_number = behind[0].number
        self._abandoned = {number for number in self._abandoned if number < self._next_number}
        for request in behind:
            request.state, request.resend = QUEUED, False
        self._queue.extendleft(reversed(behind))

    def _take_queued(self, now: float) -> list[WriteRequest]:
        taken: list[WriteRequest] = []
        unanswered = self._unanswered
        # The oldest number without an answer stays among the last 16, though later ones were answered or given up.
        while self._queue and not (unanswered and self._next_number - unanswered[0].number >= UNANSWERED_MAX):
            if self._next_number > NUMBER_MAX:
                break
            request = self._queue.popleft()
            request.number = self._next_number
            self._next_number += 1
            unanswered.append(request)
            self._send(request, now)
            taken.append(request)
        return taken

    def _give_up_aged(self, now: float) -> None:
        """Gives up requests that may have been written, if the node may have forgotten their producer meanwhile.

        A blocking client that was paused for hours has such requests: its time-outs do not run during the pause.
        """
        for request in self._unanswered.copy():
            if request.resend and now - request.sent_at > IDLE_SECONDS_MAX:
                self._anew = True
                self.fail(
                    request,
                    OutcomeUnknown(
                        f"a block for partition {self.partition} was sent {now - request.sent_at:.0f} s ago, and its "
                        "answer was lost with the connection: it may be written, and the node may have forgotten that"
                    ),
                )

    def _send(self, request: WriteRequest, now: float) -> None:
        request.state = SENT
        if not request.resend:
            request.sent_at = now
        header = request.block.header
        if header.producer_seq != request.number or header.producer_id != self._producer_id:
            request.block = request.block.numbered(self._producer_id, request.number)

    def link_lost(self) -> None:
        """The connection is lost: each unanswered block may or may not have arrived."""
        for request in self._unanswered.copy():
            if request.state is QUEUED:  # a part
                continue
            request.resend |= request.state is SENT
            request.state = HELD
            if request.withdrawn:
                self._drop(request)
        self.held_until = 0.0

    def answered(self, request: WriteRequest, versions: VersionRange) -> None:
        """The node has written ``request``, or had it already."""
        self._unanswered.remove(request)
        if versions.first_seq and request.withdrawn:
            self._abandon(request.number)  # no caller knows this version, so its loss is not reported
        elif versions.first_seq:
            self._acknowledged.append((request.number, versions))
        else:
            self._free_number(request)  # nothing was there to delete, so nothing was written
        request.state = DONE
        if request.span is not None:
            request.span.written(versions)
        request.done(versions, None)

    def refused(
        self, request: WriteRequest, error: TailraceError, hold_until: float, *, in_doubt: bool = False
    ) -> None:
        """The node does not write ``request``. If the error is retryable, it is sent again after ``hold_until``.

        ``in_doubt``: it may have been written all the same. An earlier doubt stays, because the node may have refused
        the request before it looked for an earlier copy.
        """
        request.state = HELD
        if isinstance(error, OutOfOrder):
            self._out_of_order(request, error)
        elif isinstance(error, Retryable):
            # After a failed fsync the journal may or may not have it.
            request.resend |= in_doubt or isinstance(error, NotDurable)
            request.tries += 1
            self.held_until = max(self.held_until, hold_until)
        else:
            if isinstance(error, OutcomeUnknown):
                request.resend = self._anew = True
            self.fail(request, error)
        if request.withdrawn and request.state is HELD:
            self._drop(request)

    def divide(self, request: WriteRequest, parts: Sequence[WriteRequest]) -> None:
        """Puts ``parts`` in the place of ``request``, which was refused for good and was not written.

        Those behind it bounce. When all have, they and the parts go back to the queue.
        """
        place, more = self._unanswered.index(request), len(parts) - 1
        self._unanswered[place : place + 1] = parts
        request.state = DONE
        for number, part in enumerate(parts, request.number):
            part.number, part.state = number, QUEUED
        for other in self._unanswered[place + len(parts) :]:
            other.number += more
        self._next_number += more
        self._abandoned = {number + more * (number > request.number) for number in self._abandoned}

    def fail(self, request: WriteRequest, error: TailraceError) -> None:
        """Gives up ``request``. If it may have been written, its number is not used again."""
        self._drop(request)
        if request.span is not None:
            request.span.failed(error)
        request.done(None, error)

    def withdraw(self, request: WriteRequest) -> None:
        """Gives up ``request`` without calling ``done``. Does nothing if it has its answer already."""
        if request.span is not None and request.state is not DONE:
            request.span.withdrawn()
            request.span = None
        if request.state is SENT:
            request.withdrawn, request.done = True, _ignore
        elif request.state is not DONE:
            self._drop(request)

    def _drop(self, request: WriteRequest) -> None:
        if request in self._unanswered:
            self._unanswered.remove(request)
            if request.state is SENT or request.resend:
                self._abandon(request.number)
            else:
                self._free_number(request)
        else:
            self._queue.remove(request)
        request.state = DONE

    def _abandon(self, number: int) -> None:
        self._abandoned.add(number)
        if len(self._abandoned) > ABANDONED_MAX:
            self._abandoned.remove(min(self._abandoned))

    def _free_number(self, request: WriteRequest) -> None:
        self._next_number -= 1
        for other in self._unanswered:
            if other.number > request.number:
                other.number -= 1
        self._abandoned = {number - (number > request.number) for number in self._abandoned}

    def _out_of_order(self, request: WriteRequest, error: OutOfOrder) -> None:
        if error.expected > request.block.header.producer_seq:
            request.resend = self._anew = True
            self.fail(request, OutcomeUnknown("the node has had this block's number, and no longer knows its result"))
            return
        request.resend = False  # it arrived after a gap, so it was not written
        if self._anew:
            return  # it goes again under a new producer id in any case
        if error.expected == request.number or any(other.number == error.expected for other in self._unanswered):
            return  # an earlier one was refused or is missing; all go again, in order
        self._anew = True
        lost = [versions for number, versions in self._acknowledged if number >= error.expected]
        if self._on_lost is not None and (lost or error.expected not in self._abandoned):
            self._on_lost(lost)

    def _begin_anew(self) -> None:
        """Takes a new producer id. Unanswered blocks are sent again under it, numbered from 1."""
        self._anew = False
        self._producer_id = self._new_producer_id()
        self._acknowledged.clear()
        self._abandoned.clear()
        for number, request in enumerate(self._unanswered, 1):
            request.number = number
        self._next_number = len(self._unanswered) + 1


def _ignore(versions: VersionRange | None, error: TailraceError | None) -> None:
    """Takes the answer to a block that was withdrawn."""


class Lanes(dict[tuple[bytes, int], Lane]):
    """The lanes of a client's single writes, by feed id and partition. A missing lane is made on access.

    Losses are not reported: put, delete and write have returned their version already.
    """

    def __init__(self, new_producer_id: Callable[[], int] | None = None) -> None:
        super().__init__()
        self._new_producer_id = random_producer_id if new_producer_id is None else new_producer_id

    def __missing__(self, key: tuple[bytes, int]) -> Lane:
        lane = self[key] = Lane(*key, self._new_producer_id)
        return lane


_system_random = random.SystemRandom()


def random_producer_id(source: random.Random = _system_random) -> int:
    """Returns a new producer id: 64 random bits, never 0."""
    return source.getrandbits(64) or 1
