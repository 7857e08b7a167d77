"""A tail: a feed as messages to one client, by a stream of its own, or by a hub that it shares.

own stream ── level with the feed, and the hub has a place ──> hub
    ^                                                           │
    └── it was too slow for the ticks that are kept, ───────────┘
        or the hub goes back before it is level with the tail

A tail that is not level keeps the recent keys of its own stream. So a rollback that ends its place is as short as if it
had never shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Protocol, TypeAlias

import trio

from tailrace.consuming.ring import RingChange
from tailrace.consuming.session import Event
from tailrace.model.position import Position, Positions
from tailrace.trio.stream import Stream
from tailrace_server.serving.tailing.gathering import Gathering
from tailrace_server.serving.tailing.hub import POSITIONS_INTERVAL_SECONDS, Hub
from tailrace_server.serving.tailing.messages import encode_message
from tailrace_server.serving.tailing.sharing import Group
from tailrace_server.serving.tailing.ticks import Place, Start

# A tail that found no place in the hub asks again after this time, and ever more rarely while no event comes: to ask
# costs something for each partition.
JOIN_SECONDS = 0.1
JOIN_SECONDS_MAX = 10.0

Since: TypeAlias = str | Positions | datetime


class Outlet(Protocol):
    """The way to a client. Its methods return when the client, or its socket, has all."""

    async def send(self, message: str) -> None:
        """Sends a message."""

    async def send_frames(self, frames: bytes) -> None:
        """Sends messages as whole frames of WebSocket."""


class Tail:
    """One client's tail of a feed."""

    def __init__(self, feed: str, consume: Callable[[Start], Stream], outlet: Outlet, group: Group | None) -> None:
        """``consume`` makes a stream. ``group``: those that may share a hub with it; None: it never shares."""
        self._feed = feed
        self._consume = consume
        self._outlet = outlet
        self._group = group
        self._gathering = Gathering()
        self._waits = trio.CancelScope()  # for an event
        self._joins_at = -math.inf  # when the hub may be asked again for a place; before, if it was not asked
        self._join_s = JOIN_SECONDS
        self._partitions = 0  # of the feed
        self._moved = False  # since positions were sent last
        self._positions_at = 0.0

    async def run(self, since: Since) -> None:
        """Sends for ever. Raises what ends a stream, and what the outlet raises."""
        has_opened = False
        start = Start(since)
        while True:
            async with self._consume(start) as stream:
                if not has_opened:
                    self._partitions = count = len(stream.status().partitions)
                    await self._send_positions("open", stream.latest_positions, feed=self._feed, partitions=count)
                    has_opened = True
                try:
                    hub, place = await self._follow(stream)
                except BaseException:
                    self._leave_group()
                    raise
            try:
                start = await self._share(hub, place)
            finally:
                self._leave_group()

    def _leave_group(self) -> None:
        if self._group is not None:
            self._group.away(self)

    # By a stream of its own

    async def _follow(self, stream: Stream) -> tuple[Hub, Place]:
        """Sends the events of the stream, until a hub has a place for the tail."""
        while True:
            found = self._find_place(stream)
            if found is not None:
                return found
            event = await self._next_event(stream)
            if event is not None:
                self._join_s = JOIN_SECONDS
                await self._send_event(stream, event)
            elif self._are_positions_due():
                # What waits goes first. The event that was given last is handled: these positions cover it.
                await self._send_each(self._gathering.take())
                await self._send_positions("positions", stream.latest_positions)

    def _find_place(self, stream: Stream) -> tuple[Hub, Place] | None:
        """Returns a place in the hub, if all that has come was sent and the hub has one.

        The end of a snapshot may come later than its last row, and the hub does not tell it again.
        """
        now = trio.current_time()
        if self._group is None or stream.has_event() or now < self._joins_at:
            return None
        if self._gathering.unfinished:
            self._joins_at = -math.inf  # the next event decides
            return None
        hub, self._joins_at = self._group.level(self, self._call, partial(self._start, stream)), -math.inf
        if hub is None:
            return None
        place = hub.place(self._positions(stream))
        if place is not None:
            if not place.is_level:
                place.remember(_rings_of(stream))
            return hub, place
        self._joins_at, self._join_s = now + self._join_s, min(2 * self._join_s, JOIN_SECONDS_MAX)
        return None

    def _start(self, stream: Stream) -> Start:
        """Returns where the stream goes on. It has no event at hand."""
        return Start(self._positions(stream), _rings_of(stream))

    def _positions(self, stream: Stream) -> Positions:
        """Returns the positions in all partitions, also in those of which no row has come yet."""
        positions = stream.latest_positions
        missing = [id for id in range(self._partitions) if id not in positions]
        return positions.with_positions({id: Position.at(stream.failover_log(id), 0) for id in missing})

    def _call(self) -> None:
        """Ends the wait for an event: a hub has begun."""
        self._waits.cancel()

    async def _next_event(self, stream: Stream) -> Event | None:
        """Returns the next event; None if positions are due first, a hub has begun, or it may be asked again."""
        if self._are_positions_due():  # asked for first: if events are at hand, nothing below would wait
            return None
        deadline = self._deadline()
        if self._joins_at > -math.inf and not stream.has_event():
            deadline = min(deadline, self._joins_at)
        with trio.CancelScope(deadline=deadline) as self._waits:
            return await anext(stream)
        return None

    async def _send_event(self, stream: Stream, event: Event) -> None:
        """Sends the event, with those before it and after it that are at hand: rows that came together go together."""
        await self._send_each(self._gathering.add(event))
        if not stream.has_event():
            await self._send_each(self._gathering.take())
        self._moved = True

    async def _send_each(self, messages: Iterable[str]) -> None:
        for message in messages:
            await self._outlet.send(message)

    # By a hub

    async def _share(self, hub: Hub, place: Place) -> Start:
        """Sends the ticks of the hub. Returns where the client's own stream goes on once it has to."""
        while True:
            with trio.CancelScope(deadline=self._deadline()) as scope:
                tick = await hub.next_tick(place)
            if scope.cancelled_caught:
                await self._send_positions("positions", place.positions)
                continue
            was_level = place.is_level
            pieces = None if tick is None else place.take(tick)
            if tick is None or pieces is None:
                self._gathering, self._moved = Gathering(place.unfinished), True
                return place.start()
            for piece in pieces:
                await self._outlet.send_frames(piece)
            if not was_level:
                self._moved = True
            elif tick.tells_positions:
                self._moved = False

    # Positions

    def _are_positions_due(self) -> bool:
        return trio.current_time() >= self._deadline()

    def _deadline(self) -> float:
        """Returns when positions are due."""
        return self._positions_at if self._moved else math.inf

    async def _send_positions(self, type_: str, positions: Positions, **fields: object) -> None:
        await self._outlet.send(encode_message(type_, **fields, positions=str(positions)))
        self._moved = False
        self._positions_at = trio.current_time() + POSITIONS_INTERVAL_SECONDS


def _rings_of(stream: Stream) -> dict[int, RingChange]:
    return {partition: stream.ring(partition) for partition in stream.latest_positions}
