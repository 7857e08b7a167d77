"""The ticks of a hub: what its stream brought since the tick before, as frames for all tails that share it. Pure.

A tail joins with the positions that its own stream has reached. They may lie before or behind those of the hub, and in
each partition differently. The tail's place begins at a tick that is nowhere ahead of them. From there on the tail
leaves out the rows that it has already, until the hub is level with it in all partitions. Then it sends the shared
frames.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from tailrace.consuming.events import Mutations, Rollback
from tailrace.consuming.ring import RingChange, unbounded_ring
from tailrace.consuming.session import Event
from tailrace.model.failover import SEQ_MAX, common_seq
from tailrace.model.position import Position, Positions
from tailrace_server.serving.tailing.gathering import Gathering

# What a hub keeps for tails that are behind: about three seconds of 2,000 small rows a second. Two tails with streams
# of their own may cost twice as much.
RING_BYTES_MAX = 2 * 1024 * 1024
RING_TICKS_MAX = 1_024
# The position of a partition in a mapping; the position itself is shared by ticks in which it did not move.
POSITION_BYTES = 100
# Frames are sent together up to so many bytes; each piece has the time that a message has.
PIECE_BYTES = 64 * 1024
_TEXT = 0x81  # the only frame of a text message; a server masks none


class Start(NamedTuple):
    """Where a stream begins.

    ``rings`` are the keys of recent rows that a tail has already, by partition: a rollback reads only these again. A
    tail without them begins the partition anew.
    """

    since: str | Positions | datetime
    rings: Mapping[int, RingChange] = MappingProxyType({})


class Tick(NamedTuple):
    """Some events of the hub's stream.

    ``pieces`` are their messages as frames, and ``positions`` is where they lead. Of the partitions in ``unfinished``
    rows were sent since their last ``snapshot_end``. ``tells_positions``: the last message tells the positions.
    """

    events: tuple[Event, ...]
    pieces: tuple[bytes, ...]
    positions: Positions
    unfinished: frozenset[int] = frozenset()
    tells_positions: bool = False

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        blocks = sum(event.block.header.raw_bytes for event in self.events if isinstance(event, Mutations))
        return blocks + sum(map(len, self.pieces)) + POSITION_BYTES * len(self.positions)

    @property
    def goes_back(self) -> bool:
        """Whether a partition goes back in it, or rows are read again."""
        return any(isinstance(event, Rollback) or getattr(event, "refetched", False) for event in self.events)


class Ring:
    """The last ticks of a hub, by their numbers from 0."""

    def __init__(self, positions: Positions) -> None:
        """``positions`` is where the hub begins."""
        self._before = positions  # of the first tick that is kept
        self._ticks: collections.deque[Tick] = collections.deque()
        self._first = 0
        self._bytes = 0
        # Tails join at this tick or later. None after a rollback, until all snapshots have ended.
        self._joins_from = 0 if _is_settled(positions) else None

    @property
    def next(self) -> int:
        """The number of the tick that comes next."""
        return self._first + len(self._ticks)

    def append(self, tick: Tick) -> None:
        """Adds a tick, and drops the oldest ones for which there is no room."""
        self._ticks.append(tick)
        self._bytes += tick.nbytes
        if tick.goes_back:
            self._joins_from = None
        if self._joins_from is None and _is_settled(tick.positions):
            self._joins_from = self.next
        while len(self._ticks) > 1 and (self._bytes > RING_BYTES_MAX or len(self._ticks) > RING_TICKS_MAX):
            oldest = self._ticks.popleft()
            self._bytes -= oldest.nbytes
            self._before = oldest.positions
            self._first += 1

    def get(self, number: int) -> Tick | None:
        """Returns a tick that has come; None if it was dropped."""
        return self._ticks[number - self._first] if number >= self._first else None

    def place(self, held: Positions) -> Place | None:
        """Returns the place of a tail that has reached ``held``; None if it has to go on by itself for now."""
        latest = self._positions_before(self.next)
        if self._joins_from is None or not _is_settled(held) or not _is_of_history(held, latest):
            return None
        low, high = max(self._first, self._joins_from), self.next
        if not _is_reached(self._positions_before(low), held):
            return None
        while low < high:  # the newest tick that leaves out nothing
            middle = (low + high + 1) // 2
            if _is_reached(self._positions_before(middle), held):
                low = middle
            else:
                high = middle - 1
        is_level = low == self.next and held == latest and not (self._ticks and self._ticks[-1].unfinished)
        return Place(low, held, is_level=is_level)

    def _positions_before(self, number: int) -> Positions:
        return self._before if number == self._first else self._ticks[number - 1 - self._first].positions


class Place:
    """How far a tail has come among the ticks. ``positions`` is what its client has."""

    def __init__(self, number: int, held: Positions, *, is_level: bool = False) -> None:
        """``number``: of the tick that it takes next. ``held``: the positions with which it joins."""
        self.number = number
        self.positions = held
        self.unfinished: frozenset[int] = frozenset()
        # The positions that it came with, and the rows above them; None once the hub is level with them.
        self._held: Positions | None = None if is_level else held
        self._gathering = Gathering()
        # As long as it is not level, the keys that it came with, and the rows that it was sent.
        self._rings: dict[int, RingChange] = {}
        self._sent: list[Mutations] = []

    @property
    def is_level(self) -> bool:
        """Whether the hub has reached the positions with which the tail has come."""
        return self._held is None

    def remember(self, rings: Mapping[int, RingChange]) -> None:
        """Keeps the recent keys of a tail that is not level.

        Not those of a partition that it has begun at 0: the hub does not tell which deletions were purged there.
        """
        held = self._held
        if held is not None:
            self._rings = {partition: ring for partition, ring in rings.items() if held[partition].seq}

    def start(self) -> Start:
        """Returns where a stream of its own goes on."""
        rings = {partition: unbounded_ring(ring) for partition, ring in self._rings.items()}
        for event in self._sent:
            if event.partition in rings:
                rings[event.partition].add_block(event.block)
        return Start(self.positions, {partition: ring.whole() for partition, ring in rings.items()})

    def take(self, tick: Tick) -> Iterable[bytes] | None:
        """Moves behind the tick. Returns what to send; None, without a move, if the tail cannot share it."""
        held = self._held
        if held is None:
            pieces: Iterable[bytes] | None = tick.pieces
            self.positions, self.unfinished = tick.positions, tick.unfinished
        else:
            pieces = self._take_rest(tick, held)
        if pieces is not None:
            self.number += 1
        return pieces

    def _take_rest(self, tick: Tick, held: Positions) -> Iterable[bytes] | None:
        """As `take`, for a tail that may have some of the rows."""
        if tick.goes_back or not _is_of_history(held, tick.positions):
            return None
        texts: list[str] = []
        for event in tick.events:
            partition = getattr(event, "partition", None)
            if isinstance(event, Mutations) and event.last_seq > held[event.partition].seq:
                self._sent.append(event)
            texts += self._gathering.add(event, above=0 if partition is None else held[partition].seq)
        texts += self._gathering.take()
        ahead = {partition: at for partition, at in tick.positions.items() if at.seq > held[partition].seq}
        self.positions = held.with_positions(ahead)
        self.unfinished = self._gathering.unfinished
        if all(p in ahead or (at.seq == held[p].seq and p not in tick.unfinished) for p, at in tick.positions.items()):
            self._held, self._rings, self._sent = None, {}, []
        return pieces_of(texts)


def pieces_of(texts: Iterable[str]) -> tuple[bytes, ...]:
    """Returns text messages as frames, several in a piece."""
    pieces: list[bytes] = []
    piece = bytearray()
    for text in texts:
        data = text.encode()
        if piece and len(piece) + len(data) > PIECE_BYTES:
            pieces.append(bytes(piece))
            piece.clear()
        piece += _head(len(data))
        piece += data
    if piece:
        pieces.append(bytes(piece))
    return tuple(pieces)


def _head(length: int) -> bytes:
    """Returns the head of a frame (RFC 6455, 5.2)."""
    if length < 126:
        return bytes((_TEXT, length))
    if length < 1 << 16:
        return bytes((_TEXT, 126)) + length.to_bytes(2, "big")
    return bytes((_TEXT, 127)) + length.to_bytes(8, "big")


def _is_settled(positions: Positions) -> bool:
    """Tells whether no partition is inside a snapshot."""
    return all(at.snapshot_first == at.seq == at.snapshot_last for at in positions.values())


def _is_reached(before: Positions, held: Positions) -> bool:
    return all(before[partition].seq <= at.seq for partition, at in held.items())


def _is_of_history(held: Positions, latest: Positions) -> bool:
    """Tells whether all that a tail has is in the history of the hub."""
    if held.keys() != latest.keys():
        return False
    return all(_is_on(at, latest[partition]) for partition, at in held.items())


def _is_on(held: Position, latest: Position) -> bool:
    if held.log == latest.log or not held.seq:
        return True
    return common_seq(held.log, held.seq, latest.log, SEQ_MAX) == held.seq
