"""The bytes that a node has sent for one stream, and a consumer's session over them, without the node."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import tailrace
from tailrace.consuming.events import Mutations
from tailrace.consuming.session import ConsumerSession
from tailrace.consuming.subscription import Subscription
from tailrace.wire.frames import FRAME_HEADER_BYTES, FrameDecoder
from tailrace.wire.messages import Hello

_PIECE_BYTES = 1024 * 1024
_SMALL_READ_BYTES = 16 * 1024  # as the SDK's shells


class Recorded(NamedTuple):
    """The bytes of one connection of a consumer, cut between frames.

    ``answers`` has a frame in each piece, up to the last one that opens a stream. The pieces of ``events`` are long.
    """

    hello: Hello
    subscription: Subscription
    answers: list[bytes]
    events: list[bytes]

    @classmethod
    async def of(cls, client: tailrace.Client, feed: str) -> Recorded:
        """Reads a feed through a stream to "now", and keeps the bytes."""
        stream = client.feed(feed).consume(until="now", catch_up="stream")
        session, data = stream._session, bytearray()
        receive_data = session.receive_data

        def receive(some: bytes | memoryview) -> None:
            data.extend(some)
            receive_data(some)

        session.receive_data, session.place = receive, lambda: None  # type: ignore[method-assign]
        async with stream:
            async for _ in stream:
                pass
        recorded = cls(session.hello, session._subscription, [], [])
        recorded._cut(bytes(data))
        return recorded

    def _cut(self, data: bytes) -> None:
        frames = _frames(data)
        session = self._session()
        while not session.answered:
            self.answers.append(next(frames))
            _answer(session, self.answers[-1])
        piece = bytearray()
        for frame in frames:
            piece += frame
            if len(piece) >= _PIECE_BYTES:
                self.events.append(bytes(piece))
                piece.clear()
        self.events.append(bytes(piece))

    def _session(self) -> ConsumerSession:
        session = ConsumerSession(self.hello, self.subscription, time.monotonic)
        session.connection_made()
        session.data_to_send()
        return session

    def consume(self, take: Callable[[Mutations], int]) -> int:
        """Has a new session take the bytes, as a shell does. Returns the rows that ``take`` has counted."""
        events = iter(self.events)
        return self._take_all(take, lambda session: session.receive_data(next(events)))

    def receive(self, sock: socket.socket, take: Callable[[Mutations], int]) -> int:
        """Does the same with the bytes of ``events`` that come from a socket, each received to its place."""

        def receive(session: ConsumerSession) -> None:
            place = session.place()
            if place is None:
                session.receive_data(sock.recv(_SMALL_READ_BYTES))
            else:
                place.received(sock.recvmsg_into(place.buffers)[0])

        return self._take_all(take, receive)

    def _take_all(self, take: Callable[[Mutations], int], receive: Callable[[ConsumerSession], None]) -> int:
        session = self._session()
        for answer in self.answers:
            _answer(session, answer)
        rows = 0
        while not session.finished:
            event = session.next_event()
            if isinstance(event, Mutations):
                rows += take(event)
            if event is None or session.credit.wants_to_send:
                session.data_to_send()
            if event is None:
                receive(session)
        return rows


def _answer(session: ConsumerSession, frame: bytes) -> None:
    session.receive_data(frame)
    session.handle_all()
    session.data_to_send()


def _frames(data: bytes) -> Iterator[bytes]:
    begin = 0
    for frame in FrameDecoder().receive_data(data):
        end = begin + FRAME_HEADER_BYTES + len(frame.body)
        yield data[begin:end]
        begin = end
