"""A hub: one stream of a feed for all tails that are level and ask for the same.

Rows become messages and frames once, whatever the number of tails. Ticks come at once while the tails are few, and
farther apart the more there are: to wake a tail and to send costs about the same for one row as for a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from tailrace.consuming.events import Mutations, RoundComplete, SnapshotStart
from tailrace.consuming.session import Event
from tailrace.errors import TailraceError
from tailrace.model.position import Positions
from tailrace.trio.stream import Stream
from tailrace_server.serving.tailing.gathering import Gathering
from tailrace_server.serving.tailing.messages import encode_message
from tailrace_server.serving.tailing.ticks import Place, Ring, Tick, pieces_of

# Positions of many partitions are long: they are sent this many seconds after the events, not after each one.
POSITIONS_INTERVAL_SECONDS = 1.0
# The time between two ticks for each tail: the tails take a third of a core at most.
TICK_SECONDS_PER_TAIL = 0.2e-3
# And for each partition, since a tick has the positions of all.
TICK_SECONDS_PER_PARTITION = 50e-6
# If it took long to wake all tails, because they are many or the machine is busy, the next tick is due after this many
# times as long, and positions too: the node has others to serve. But it is due after this time.
TICK_SHARE = 2
TICK_SECONDS_MAX = 1.0
# To wake a tail and to send takes some 50 µs: a turn of the loop takes a millisecond longer.
TAILS_PER_TURN = 16
# What a tick takes at most, and a block more.
TICK_BYTES = 256 * 1024


class Hub:
    """The ticks of one stream, while `run` runs."""

    def __init__(self, stream: Stream, count_tails: Callable[[], int]) -> None:
        """``count_tails`` tells how many share it."""
        self._stream = stream
        self._count_tails = count_tails
        self._ring: Ring | None = None
        self._error: TailraceError | None = None
        self._waiting = trio.lowlevel.ParkingLot()  # the tails that have all ticks
        self._gathering = Gathering()
        # Of the next tick
        self._events: list[Event] = []
        self._texts: list[str] = []
        self._bytes = 0
        self._due = self._pauses_until = 0.0
        self._moved = False  # since positions were told last
        self._positions_at = 0.0

    def place(self, held: Positions) -> Place | None:
        """Returns the place of a tail that has reached ``held``; None if it has to go on by itself for now."""
        if self._ring is None or self._error is not None:
            return None
        return self._ring.place(held)

    async def next_tick(self, place: Place) -> Tick | None:
        """Returns the next tick of a tail; None if it was dropped. Raises what has ended the hub."""
        assert self._ring is not None, "a hub gives places once it has begun"
        while place.number == self._ring.next:
            if self._error is not None:
                raise self._error
            await self._waiting.park()
        return self._ring.get(place.number)

    def end(self, error: TailraceError) -> None:
        """Ends the waits of its tails with ``error``."""
        self._error = error
        self._waiting.unpark_all()

    async def run(self, began: Callable[[], None]) -> None:
        """Makes ticks for ever. Calls ``began`` once tails may join. Raises what ends the stream."""
        async with self._stream:
            self._ring = Ring(self._stream.latest_positions)
            began()
            while True:
                await self._gather()
                self._tick(self._ring)
                await self._call_tails()

    async def _call_tails(self) -> None:
        """Wakes the tails that wait, a few in each turn of the loop: the node serves others in between."""
        began_at = trio.current_time()
        for _ in range(0, max(len(self._waiting), 1), TAILS_PER_TURN):
            self._waiting.unpark(count=TAILS_PER_TURN)
            await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()  # the tails that were woken last may have their turn after this task
        took_s = trio.current_time() - began_at
        self._pauses_until = began_at + min(TICK_SHARE * took_s, TICK_SECONDS_MAX)

    async def _gather(self) -> None:
        """Takes events until a tick is due, and then what is at hand."""
        while not self._is_due():
            with trio.move_on_at(self._deadline()):
                self._take(await anext(self._stream))

    def _is_due(self) -> bool:
        if self._bytes >= TICK_BYTES:
            return True
        return not self._stream.has_event() and trio.current_time() >= self._deadline()

    def _deadline(self) -> float:
        """Returns when the next tick is due, if nothing more comes."""
        due = self._due if self._events else math.inf
        return max(min(due, self._positions_at) if self._moved else due, self._pauses_until)

    def _take(self, event: Event) -> None:
        self._moved = True
        if isinstance(event, SnapshotStart | RoundComplete):
            return
        self._events.append(event)
        self._texts += self._gathering.add(event)
        if isinstance(event, Mutations):
            self._bytes += event.block.header.raw_bytes

    def _tick(self, ring: Ring) -> None:
        now = trio.current_time()
        positions = self._stream.latest_positions
        tells = self._moved and now >= self._positions_at
        texts = [*self._texts, *self._gathering.take()]
        if tells:
            texts.append(encode_message("positions", positions=str(positions)))
            self._moved, self._positions_at = False, now + POSITIONS_INTERVAL_SECONDS
        ring.append(Tick(tuple(self._events), pieces_of(texts), positions, self._gathering.unfinished, tells))
        self._events, self._texts, self._bytes = [], [], 0
        self._due = now + TICK_SECONDS_PER_TAIL * self._count_tails() + TICK_SECONDS_PER_PARTITION * len(positions)
