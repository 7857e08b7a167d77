"""A look-up of keys: its GET, and the answers to it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tailrace.errors import TailraceError
from tailrace.model import Item, Level
from tailrace.requests.request import Request
from tailrace.wire.frames import Frame
from tailrace.wire.messages import Get, Got, Row, lone_get

# Called once with the rows of all keys, in their order, or with the error.
Found: TypeAlias = Callable[[list[Item | None] | None, TailraceError | None], None]


class LookUp(Request):
    """A request for the rows of some keys, `GET_KEYS_MAX` at most. If an answer leaves some out, they are asked for.

    ``role`` returns the role that the GET asks of the node: 0 leader, 1 follower. ``ask`` queues the request again.
    """

    __slots__ = ("_ask", "_feed_id", "_found", "_items", "_keys", "_level", "_role", "is_lone")

    is_read = True

    def __init__(
        self,
        feed_id: bytes,
        level: Level,
        keys: list[bytes],
        found: Found,
        deadline: float,
        role: Callable[[], int],
        ask: Callable[[Request], None],
    ) -> None:
        # The fields of ``Request``, without another call for each look-up.
        self.deadline, self.sequence, self.order = deadline, None, 0
        self.hold_until, self.sent, self.in_doubt, self.tries = 0.0, False, False, 0
        self._feed_id = feed_id
        self._level = level
        self._keys = keys
        self.is_lone = len(keys) == 1
        self._items: list[Item | None] = []  # of the first keys
        self._found = found
        self._role = role
        self._ask = ask

    def look_up(self, keys: list[bytes]) -> None:
        """Asks for the rows of other keys, once all rows of the last ones were found."""
        self._keys, self._items = keys, []
        self.begin_anew()
        self._ask(self)

    @property
    def _left(self) -> list[bytes]:
        """The keys that are asked for now."""
        begin, keys = len(self._items), self._keys
        return keys[begin:] if begin else keys

    def found_alone(self, row: Row) -> None:
        """Takes the answer to a look-up that ``is_lone``."""
        item = None if row is None else tuple.__new__(Item, (self._keys[0], row[2], row[0], row[1]))
        self._found([item], None)

    def encode(self, id: int) -> bytes:
        """Returns the GET of the keys that are asked for now."""
        if self.is_lone:
            return lone_get(self._feed_id, self._level, self._keys[0], self._role(), id)
        return Get(self._feed_id, self._level, self._left, self._role()).encode(id)

    def decode(self, frame: Frame) -> list[Item | None]:
        """Returns the rows of the first keys of the GET."""
        return Got.decode(frame.body, self._left)

    def done(self, rows: list[Item | None] | None, error: TailraceError | None) -> None:
        """Takes the rows of a GET, and asks for the others, or takes the error."""
        if rows is not None:
            self._items = self._items + rows if self._items else rows
        if error is not None:
            self._found(None, error)
        elif len(self._items) == len(self._keys):
            self._found(self._items, None)
        else:
            self.begin_anew()
            self._ask(self)
