"""The short ways of lone calls: of an answer that is all of a read, a look-up of one key, a put or deletion. Pure.

    begin ──frame──> shell: sends, waits, reads once ──bytes──> end ──> the row
      │                │        │ something else                 │
      │                │        └───────> go_on <────────────────┘ other bytes than the answer alone
      └── None ────────┴──────────────────> the general way: LookUp, RequestQueue

A look-up takes the short way if its session waits for nothing else. It is no request of the session then: it has an id
only, and if its caller goes away the answer is dropped, as that of a request that was given up.

A put or deletion takes the short way if its session waits for nothing else, and its lane for no other block. Then
it leaves in one step as all that the general way would leave: the row is in its lane, sent. So the general way can go
on at any time, and sends the same bytes again if it has to.

    begin ──frame──> shell: sends, waits, reads ──bytes──> take ──> done
      │                                                     │
      └── None ──> the general way: WriteRow   receive_data <┘ other bytes than the answer alone
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol, TypeAlias

from tailrace.block import Block
from tailrace.block.header import KEY_BYTES_MAX
from tailrace.block.row import row_bytes
from tailrace.model import Item, Level, Resolved, Version, VersionRange
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests.lane import Done, Lanes, WriteRequest
from tailrace.requests.look_up import Found, LookUp
from tailrace.requests.offered_levels import OfferedLevels
from tailrace.requests.request import Reply, Request
from tailrace.requests.request_queue import RequestQueue
from tailrace.requests.write_queue import RowWrite, WriteQueue
from tailrace.wire.frames import ID_MAX
from tailrace.wire.messages import TRACING_MODULE, lone_answer, lone_get, lone_write_start, lone_written

# The requests that were sent on a connection, by id. None: a look-up by the short way.
ById: TypeAlias = dict[int, Request | WriteRequest | None]

# The id of each call by the short way: there is one at a time. It is the last one that other requests come to.
LONE_ID = ID_MAX
# The place of the block in the frame of a WRITE.
LONE_BLOCK_AT = len(lone_write_start(bytes(16), 0, 0, LONE_ID))
# A longer value takes the general way, which sends it in a buffer of its own.
LONE_VALUE_BYTES_MAX = 2_048


class LoneCall(Protocol):
    """A call that gets the next bytes of its connection."""

    def begin(self, now: float) -> bytes | None:
        """Returns the frame, which counts as sent. None: the general way has to do the call."""
        ...

    def take(self, data: bytes | memoryview) -> bool:
        """Takes the bytes if they are its answer alone. Otherwise the general way takes over, and handles them."""
        ...

    def go_on(self) -> bool:
        """Lets the general way take over, unless it has, or the answer is known. Returns whether it has."""
        ...


def receive_alone(data: bytes | memoryview, by_id: ById, queue: RequestQueue, writes: WriteQueue) -> bool:
    """Takes an answer that is all of ``data``, by one look. False: it is none, and nothing has happened."""
    if (lone := lone_answer(data)) is None:
        return False
    id, answer = lone
    request = by_id.get(id)
    if isinstance(answer, VersionRange):
        if not isinstance(request, WriteRequest):
            return False
        del by_id[id]
        writes.answered(request, answer)
    else:
        if not (isinstance(request, LookUp) and request.is_lone):
            return False
        del by_id[id]
        queue.found_alone(request, answer)
    return True


class Begun:
    """Hands over a look-up from the short way to the general one: the request and its reply, or neither."""

    __slots__ = ("_asked", "reply", "request")

    def __init__(self) -> None:
        self.request: LookUp | None = None
        self._asked: object = None
        self.reply: Reply[list[Item | None]] = _NO_REPLY

    def begin(self, request: LookUp, asked: object, reply: Reply[list[Item | None]]) -> None:
        """Takes the request, for the fields ``asked`` of a step."""
        self.request, self._asked, self.reply = request, asked, reply

    def reply_to(self, step: object) -> tuple[LookUp, Reply[list[Item | None]]] | None:
        """Returns the request that ``step`` would make, and its reply; None if it has none."""
        return None if self.request is None or step != self._asked else (self.request, self.reply)


_NO_REPLY: Reply[list[Item | None]] = Reply()


class LoneLookUps:
    """The look-ups of one key that a session sends while it does nothing else: one at a time."""

    def __init__(
        self,
        by_id: ById,
        queue: RequestQueue,
        writes: WriteQueue,
        is_quiet: Callable[[], bool],
        get: Callable[[bytes, Level, list[bytes], Found, float], LookUp],
    ) -> None:
        """``is_quiet`` tells whether the session's connection can be used, ``get`` queues a look-up."""
        self._by_id = by_id
        self._queue = queue
        self._writes = writes
        self._is_quiet = is_quiet
        self._get = get
        self._start = b""  # of the last frame: most often the next one begins with the same
        self._made_for: tuple[bytes, Level, int] | None = None

    def begin(self, feed_id: bytes, level: Level, key: bytes) -> bytes | None:
        """Returns the frame of a GET, which counts as sent. None: the look-up has to take the general way.

        ``end`` or ``go_on`` has to follow, unless the caller goes away.
        """
        if self._by_id or self._queue.requests or not (self._writes.is_idle and self._is_quiet()):
            return None
        made_for = feed_id, level, len(key)
        if made_for != self._made_for:
            self._start = lone_get(feed_id, level, key, 0, LONE_ID)[: -len(key)]
            self._made_for = made_for
        self._by_id[LONE_ID] = None
        return self._start + key

    def end(self, data: bytes | memoryview, key: bytes) -> list[Item | None] | None:
        """Returns the item, or None for a key without a value, in a list. None: ``data`` is not its answer alone.

        ``data`` are the first bytes on the connection since ``begin``.
        """
        if (lone := lone_answer(data)) is None:
            return None
        id, row = lone
        if id != LONE_ID or isinstance(row, VersionRange) or self._by_id.pop(LONE_ID, data) is not None:
            return None
        return [None if row is None else tuple.__new__(Item, (key, row[2], row[0], row[1]))]

    def go_on(
        self,
        feed_id: bytes,
        level: Level,
        key: bytes,
        begun: Begun,
        reply: Reply[list[Item | None]],
        deadline: float,
    ) -> None:
        """Makes the look-up a request of the session, which waits for its answer, and asks again if need be.

        ``reply`` takes the answer. Call it before any other bytes of the node are handled.
        """
        asked = feed_id, level, [key]
        request = self._get(*asked, reply.done, deadline)
        begun.begin(request, asked, reply)
        if self._by_id.get(LONE_ID, request) is None:  # else the connection was lost, or its answer is read
            self._by_id[LONE_ID] = request
            self._queue.count_as_sent(request)


class LoneLookUp:
    """A look-up that waits for the next bytes of the connection. ``found`` has its item in a list, once it is known."""

    __slots__ = ("_asked", "_begun", "_deadline", "_lone", "_reply", "_retry_for_s", "found")

    def __init__(
        self,
        lone: LoneLookUps,
        asked: tuple[bytes, Level, bytes],
        begun: Begun,
        reply: type[Reply[list[Item | None]]],
        retry_for_s: float,
    ) -> None:
        """``asked``: the feed's id, the level and the key. ``begun`` gets a request if the general way takes over."""
        self._lone = lone
        self._asked = asked
        self._begun = begun
        self._reply = reply
        self._retry_for_s = retry_for_s
        self._deadline = 0.0
        self.found: list[Item | None] | None = None

    def begin(self, now: float) -> bytes | None:
        self._deadline = now + self._retry_for_s
        return self._lone.begin(*self._asked)

    def take(self, data: bytes | memoryview) -> bool:
        self.found = self._lone.end(data, self._asked[2])
        if self.found is None:
            self.go_on()
        return self.found is not None

    def go_on(self) -> bool:
        if self.found is not None or self._begun.request is not None:
            return False
        self._lone.go_on(*self._asked, self._begun, self._reply(), self._deadline)
        return True


class LoneRow(RowWrite):
    """A row that was sent by the short way, as ``frame``. It is in its lane like others."""

    __slots__ = ("frame",)

    frame: bytes  # set at once by `LoneWrites`, without another constructor for each row

    def __getattr__(self, name: str) -> Block:
        """Returns the block, which is needed only if it is sent again."""
        if name != "block":
            raise AttributeError(f"a row has no attribute {name!r}", name=name, obj=self)
        self.block = Block.parse(self.frame[LONE_BLOCK_AT:])
        return self.block


class LoneWrites:
    """The puts and deletions that a session sends while it does nothing else: one at a time."""

    def __init__(
        self,
        by_id: ById,
        queue: RequestQueue,
        writes: WriteQueue,
        levels: OfferedLevels,
        is_quiet: Callable[[], bool],
    ) -> None:
        """``is_quiet`` as in `LoneLookUps`."""
        self._by_id = by_id
        self._queue = queue
        self._writes = writes
        self._levels = levels
        self._is_quiet = is_quiet
        self._start = b""  # of the last frame: most often the next one begins with the same
        self._made_for: tuple[bytes, int, int] | None = None

    def begin(
        self,
        feed: Resolved,
        lanes: Lanes,
        key: bytes,
        value: bytes | None,
        level: str | None,
        done: Done,
        now: float,
        deadline: float,
    ) -> LoneRow | None:
        """Adds a row to its lane, which counts as sent: send its frame. None: the general way has to do it.

        ``value`` None deletes.
        """
        if self._by_id or self._queue.requests or TRACING_MODULE in sys.modules or not self._is_quiet():
            return None
        if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX:
            return None
        if value is not None and (type(value) is not bytes or len(value) > LONE_VALUE_BYTES_MAX):
            return None
        wanted = None if level is None else self._levels.find(level)
        if wanted is None and level is not None:
            return None
        hash_ = key_hash(key)
        partition = partition_of_hash(hash_, feed.partitions)
        lane = lanes[feed.feed_id, partition]
        numbers = self._writes.numbers_alone(lane, now)
        if numbers is None:
            return None
        block = row_bytes(key, value, hash_=hash_, partition=partition, producer_id=numbers[0], producer_seq=numbers[1])
        made_for = feed.feed_id, self._levels.unnamed if wanted is None else wanted, len(block)
        if made_for != self._made_for:
            self._start = lone_write_start(*made_for, LONE_ID)
            self._made_for = made_for
        row = LoneRow(lane, key, value, hash_, wanted, done, deadline)
        row.frame = self._start + block
        self._writes.add_sent(row, now)
        self._by_id[LONE_ID] = row
        return row

    def end(self, row: LoneRow, data: bytes | memoryview) -> bool:
        """Completes a row by ``data``, the next bytes of the connection. False: nothing has happened.

        So it is if they are not its answer alone, or if other requests wait for an answer, too.
        """
        if (written := lone_written(data)) is None or len(self._by_id) != 1 or self._queue.requests:
            return False
        id, versions = written
        if id != LONE_ID or self._by_id.get(LONE_ID) is not row or not self._writes.answered_alone(row, versions):
            return False
        del self._by_id[LONE_ID]
        return True


# A write: the feed, the lanes of the client, the key, the value (None deletes), the level, and what gets the answer.
Written: TypeAlias = tuple[Resolved, Lanes, bytes, bytes | None, str | None, Done]


class LoneWrite:
    """A write that waits for the next bytes of the connection. ``row`` is in its lane, once it has begun."""

    __slots__ = ("_asked", "_retry_for_s", "_writes", "row")

    def __init__(self, writes: LoneWrites, asked: Written, retry_for_s: float) -> None:
        self._writes = writes
        self._asked = asked
        self._retry_for_s = retry_for_s
        self.row: LoneRow | None = None

    def begin(self, now: float) -> bytes | None:
        row = self.row = self._writes.begin(*self._asked, now, now + self._retry_for_s)
        return None if row is None else row.frame

    def take(self, data: bytes | memoryview) -> bool:
        return self.row is not None and self._writes.end(self.row, data)

    def go_on(self) -> bool:
        return False  # the row is a request of its session already


def version_of(written: VersionRange) -> Version:
    """Returns the version of a row, out of the answer to it."""
    return tuple.__new__(Version, (written[0], written[1], written[3]))
