"""Sends parts of segments on one connection: one after the other, in turns with the answers and the streams.

    SEGMENT_FETCH ──> waiting parts ──> in memory?  yes ──> sendfile, from the page cache to the socket
                                          ^         no ─┐
                                          └── a thread loads it, and those behind it

If a part does not stay in memory, or if the connection has no socket, a thread reads the part, and it is sent as an
answer. A part is handed to the transport when everything before it has left. Answers queue behind one part at most, and
streams send when the transport is empty.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import trio

from tailrace.errors import BadSegment, Overloaded, TailraceError
from tailrace.trio.file_part import FilePart
from tailrace.trio.transport import FileTransport, Transport
from tailrace.wire.segment_messages import SegmentFetch, data_header
from tailrace_server.segment import Segment
from tailrace_server.serving.answers import Answers
from tailrace_server.serving.connection_memory import ConnectionMemory
from tailrace_server.serving.services import OpenConnection

# If a part is not in memory, the next ones are most likely not: about this many bytes are loaded at a time.
LOADED_BYTES_MAX = 4 * 1024 * 1024


class SendingConnection(OpenConnection, Protocol):
    """A connection, as its sender of segments sees it."""

    transport: Transport
    answers: Answers
    memory: ConnectionMemory
    segments: SegmentSender
    is_closing: bool
    takes_ttls: bool

    def flush(self) -> None:
        """Sends the queued frames."""

    def fail(self, error: TailraceError) -> None:
        """Sends the error, then closes."""


class WaitingPart(NamedTuple):
    """A part of a segment's file to send behind ``head``, the frame's first bytes. Its segment is pinned meanwhile.

    ``failed`` is called with the error if it cannot be read.
    """

    head: bytes
    segment: Segment
    offset: int
    nbytes: int
    failed: Callable[[TailraceError], None]


class SegmentSender:
    """The parts that one connection is to send."""

    def __init__(self, connection: SendingConnection) -> None:
        self._connection = connection
        self._waiting: list[WaitingPart] = []  # not many; a deque takes 700 bytes more on each connection
        self._drained: trio.Event | None = None
        self._is_running = False  # there is a task that sends

    def add(self, fetch: SegmentFetch, id: int) -> None:
        """Sends the part that ``fetch`` asks for, as soon as it is its turn.

        Raises UnknownCheckpoint, BadSegment, or Overloaded if too many parts wait.
        """
        node = self._connection.node
        segment = node.storage.checkpoints.find(fetch.checkpoint_id, fetch.segment_id)
        if fetch.offset + fetch.nbytes > segment.nbytes:
            raise BadSegment(
                f"segment {fetch.segment_id.hex()} has {segment.nbytes} bytes, and {fetch.nbytes} bytes from "
                f"{fetch.offset} on were asked for"
            )
        if len(self._waiting) >= node.config.limits.waiting_fetches_max:
            raise Overloaded(f"{len(self._waiting)} parts of segments wait for this connection already")
        head = data_header(fetch.nbytes, id)
        self.push(WaitingPart(head, segment, fetch.offset, fetch.nbytes, partial(self._answer_error, id)))

    def _answer_error(self, id: int, error: TailraceError) -> None:
        self._connection.answers.add_copy_error(error, id)
        self._connection.flush()

    def push(self, part: WaitingPart) -> None:
        """Sends ``part`` as soon as it is its turn. The caller bounds the parts that it pushes."""
        self._connection.node.storage.pins.pin(part.segment)
        self._waiting.append(part)
        if not self._is_running:
            self._is_running = True
            self._connection.nursery.start_soon(self._run)

    def drained(self) -> None:
        """Lets the next part go: all bytes before it have left."""
        if self._drained is not None:
            self._drained.set()

    async def _run(self) -> None:
        """Sends the waiting parts, and ends after the last one."""
        connection = self._connection
        try:
            while self._waiting and not connection.is_closing:
                part = self._waiting[0]
                try:
                    await self._send(part)
                except TailraceError as error:
                    part.failed(error)
                self._drop_first()
        finally:
            self._is_running = False
            while self._waiting:
                self._drop_first()

    def _drop_first(self) -> None:
        self._connection.node.storage.pins.unpin(self._waiting.pop(0).segment)

    async def _send(self, part: WaitingPart) -> None:
        """Sends a part. Raises SegmentDamaged, or Overloaded if no descriptor is free."""
        connection, transport = self._connection, self._connection.transport
        await self._turn()
        if connection.is_closing:
            return
        if isinstance(transport, FileTransport):
            if self._send_cached(part, transport):
                return
            await connection.node.host.workers.in_thread(partial(_load, list(self._next_parts())))
            await self._turn()
            if connection.is_closing or self._send_cached(part, transport):
                return
        # The part does not stay in memory, or the connection has no socket. The bytes count as an answer.
        await connection.memory.wait_for_answer_room()
        read = partial(part.segment.read_part, part.offset, part.nbytes)
        connection.memory.hold_found(part.nbytes)
        try:
            data = await connection.node.host.workers.in_thread(read)
        finally:
            connection.memory.hold_found(-part.nbytes)
        connection.answers.add(part.head + data)
        connection.flush()

    def _send_cached(self, part: WaitingPart, transport: FileTransport) -> bool:
        """Sends a part from the page cache. Returns False if it is not there."""
        lent = part.segment.lend_cached(part.offset, part.nbytes)
        if lent is None:
            return False
        file_part = FilePart(lent.fileno, part.offset, part.nbytes, lent.give_back)
        transport.send_file(part.head, file_part)
        return True

    def _next_parts(self) -> Iterator[WaitingPart]:
        """Yields the parts whose turn comes next, of LOADED_BYTES_MAX together, and one at least."""
        left_bytes = LOADED_BYTES_MAX
        for part in self._waiting:
            if left_bytes <= 0:
                return
            left_bytes -= part.nbytes
            yield part

    async def _turn(self) -> None:
        """Waits until the transport has sent everything, once: streams may be faster to fill it again.

        Always a checkpoint, so that others have the loop between two parts.
        """
        if not self._connection.transport.backlog_bytes:
            await trio.lowlevel.checkpoint()
            return
        self._drained = trio.Event()
        await self._drained.wait()
        self._drained = None


def _load(parts: list[WaitingPart]) -> None:
    """Loads the parts into memory. SegmentDamaged or Overloaded if that fails for the first one."""
    first, *others = parts
    first.segment.load(first.offset, first.nbytes)
    with contextlib.suppress(TailraceError):  # their own turn tells
        for part in others:
            part.segment.load(part.offset, part.nbytes)
