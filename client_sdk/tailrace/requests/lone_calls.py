"""The short ways of lone calls: of an answer that is all of a read, and of a look-up of one key. Pure.

    begin ──frame──> shell: sends, waits, reads once ──bytes──> end ──> the row
      │                │        │ something else                 │
      │                │        └───────> go_on <────────────────┘ other bytes than the answer alone
      └── None ────────┴──────────────────> the general way: LookUp, RequestQueue

A look-up takes the short way if its session waits for nothing else. It is no request of the session then: it has an id
only, and if its caller goes away the answer is dropped, as that of a request that was given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tailrace.model import Item, Level, VersionRange
from tailrace.requests.lane import WriteRequest
from tailrace.requests.look_up import Found, LookUp
from tailrace.requests.request import Reply, Request
from tailrace.requests.request_queue import RequestQueue
from tailrace.requests.write_queue import WriteQueue
from tailrace.wire.frames import ID_MAX
from tailrace.wire.messages import lone_answer, lone_get

# The requests that were sent on a connection, by id. None: a look-up by the short way.
ById: TypeAlias = dict[int, Request | WriteRequest | None]

# The id of each look-up by the short way: there is one at a time. It is the last one that other requests come to.
LONE_ID = ID_MAX


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
    """What a look-up has begun by the short way, for the general one: nothing, or a request and its reply."""

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

    def drop(self) -> None:
        """Forgets a look-up whose frame has not been sent."""
        self._by_id.pop(LONE_ID, None)

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
