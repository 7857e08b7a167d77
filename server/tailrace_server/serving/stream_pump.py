"""Moves the frames of a connection's streams to its transport, and reads the chunks of segments that they wait for.

Rounds.next_buffers ──> buffers, small ones joined ──> Connection.send
Rounds.next_loads ──> SegmentCursor.load_cached ──> Rounds.loaded ──> sent before the next one is read
                  └──> if the disk has to be waited for, a thread: load ─┘ ──> ReadAhead.next ──> a thread: Part.bring
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from tailrace.errors import Overloaded
from tailrace_server.segment import SegmentDamaged
from tailrace_server.stream.read_ahead import ReadAhead
from tailrace_server.stream.rounds import TURNS_MAX

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace.trio.transport import Transport
    from tailrace_server.serving.answers import Answers
    from tailrace_server.serving.services import Services
    from tailrace_server.stream.read_ahead import Part
    from tailrace_server.stream.rounds import Rounds
    from tailrace_server.stream.segment_cursor import SegmentCursor
    from tailrace_server.stream.stream_slot import StreamSlot

# Streams send about this many bytes, then other tasks have a turn of the loop.
PUMP_BYTES = 1024 * 1024
# And so many in one turn of the loop at most, about 2 ms of the processor, if the peer takes them as fast.
TURN_BYTES = 4 * PUMP_BYTES
# With a backlog of so many bytes the streams send more than the system takes at once.
BULK_BYTES_MIN = 256 * 1024
# If a system call would take more buffers than BUFFERS_MAX, those of less than JOIN_BYTES_MAX are joined.
BUFFERS_MAX = 8
JOIN_BYTES_MAX = 16 * 1024
# A stream that finds no free descriptor for a segment tries again after this time: others may have closed theirs.
DESCRIPTOR_WAIT_SECONDS = 0.1

log = logging.getLogger("tailrace.server")


class Pumped(Protocol):
    """The parts of a connection that its pump uses."""

    node: Services
    nursery: trio.Nursery
    transport: Transport
    rounds: Rounds
    answers: Answers
    is_closing: bool
    draining: bool

    def send(self, buffers: Sequence[bytes | memoryview], answer_bytes: int) -> None:
        """Sends buffers, of which the last ``answer_bytes`` bytes are answers."""
        ...

    def flush(self) -> None:
        """Sends all that waits."""
        ...


class StreamPump:
    """The pump of one connection. Only its own methods change its fields."""

    def __init__(self, connection: Pumped, drained: Callable[[], None]) -> None:
        """``drained`` is called after each pump of a draining connection that has no stream left."""
        self._connection = connection
        self._drained = drained
        self._ahead = ReadAhead()
        self._loading = 0  # streams whose chunk a thread reads
        self.goes_on_soon = False  # streams have more to send, after other tasks

    def pump(self) -> None:
        """Sends the streams' frames, as far as the consumer has granted room and the socket takes them.

        Answers that are queued leave in the same call, behind the last of the frames.
        """
        connection = self._connection
        rounds, transport, window = connection.rounds, connection.transport, connection.rounds.window
        examined_max, turns_max = rounds.examined_bytes + PUMP_BYTES, rounds.turns_given + TURNS_MAX
        sent_max = window.sent_bytes + TURN_BYTES
        while not transport.backlog_bytes:
            sent_blocks = window.sent_blocks
            buffers = rounds.next_buffers(PUMP_BYTES)
            if buffers and rounds.waits_for_chunk and window.sent_blocks == sent_blocks and self._load_next():
                # Frames between two chunks, such as a round's end, leave with the second one: the peer wakes once.
                buffers += rounds.next_buffers(PUMP_BYTES)
            if buffers:
                answers = connection.answers.take() if connection.answers.queued and not rounds.has_news else b""
                if answers:
                    buffers.append(answers)
                connection.send(buffers if len(buffers) <= BUFFERS_MAX else _joined(buffers), len(answers))
                if transport.backlog_bytes >= BULK_BYTES_MIN:
                    self._expect_bulk(transport)
            if not rounds.has_news:
                break
            is_over = rounds.examined_bytes >= examined_max or window.sent_bytes >= sent_max
            if is_over or rounds.turns_given >= turns_max:
                self._go_on_soon()
                break
            if not buffers and not self._load_next():
                break
        if transport.backlog_bytes:
            self._load_next()  # while the peer reads
        if connection.draining and not rounds.slots:
            self._drained()

    def _expect_bulk(self, transport: Transport) -> None:
        expect_bulk = getattr(transport, "expect_bulk", None)  # as `trio.transport.receive_each`
        if expect_bulk is not None:
            expect_bulk()

    def _load_next(self) -> bool:
        """Reads the next chunk that is in memory, and has those before it read by threads.

        A chunk takes 0.2 ms of the loop. A thread would take as long beside it, for its start and its end. Returns
        whether streams have more to send.
        """
        connection = self._connection
        rounds, has_ended = connection.rounds, False
        for slot, part in rounds.next_loads():
            try:
                loaded = part.load_cached(rounds.window.nbytes)
            except SegmentDamaged as error:
                self._found_damage(slot, error)
                has_ended = True  # and a frame tells it
                continue
            except Overloaded:
                loaded = None
            if loaded is not None:
                rounds.loaded(slot, part, *loaded)
                self._read_ahead(slot, part)
                return True
            # The stream may be closed, and the segment removed, before it has been read.
            connection.node.storage.pins.pin(part.segment)
            self._loading += 1
            connection.nursery.start_soon(self._load, slot, part)
        return has_ended

    def _found_damage(self, slot: StreamSlot, error: SegmentDamaged) -> None:
        self._connection.node.storage.found_damage(error)
        self._connection.rounds.load_failed(slot, str(error))

    def _go_on_soon(self) -> None:
        """Streams have had enough turns, or looked through enough, for now: they go on after other tasks."""
        if not self.goes_on_soon:
            self.goes_on_soon = True
            self._connection.nursery.start_soon(self._go_on)

    async def _go_on(self) -> None:
        await trio.lowlevel.checkpoint()
        self.goes_on_soon = False
        if not self._connection.is_closing:
            self.pump()

    async def _load(self, slot: StreamSlot, part: SegmentCursor) -> None:
        """Reads a chunk of a segment, which is pinned, in a thread; goes on with the stream that waits for it."""
        connection = self._connection
        storage, rounds = connection.node.storage, connection.rounds
        try:
            blocks, index = await self._loaded(part)
        except SegmentDamaged as error:
            self._found_damage(slot, error)
        else:
            rounds.loaded(slot, part, blocks, index)
            if self._loading == 1 and not rounds.waits_for_chunk:  # chunks of others would be read meanwhile
                self._ahead.missed(part)
        finally:
            self._loading -= 1
            storage.pins.unpin(part.segment)
        connection.flush()
        self._read_ahead(slot, part)

    def _read_ahead(self, slot: StreamSlot, part: SegmentCursor) -> None:
        """Has a thread read what follows ``part``'s chunk, if that is not in memory either."""
        following = self._ahead.next(part, slot.stream.partition.chain)
        if following is not None:
            self._connection.node.storage.pins.pin(following.segment)
            self._connection.nursery.start_soon(self._bring, following)

    async def _bring(self, following: Part) -> None:
        """Reads a part of a segment, which is pinned, in a thread. The stream that gets there tells what fails."""
        node, was_missing = self._connection.node, False
        try:
            with contextlib.suppress(SegmentDamaged, Overloaded):
                was_missing = await node.host.workers.in_thread(following.bring)
        finally:
            self._ahead.read(was_missing=was_missing)
            node.storage.pins.unpin(following.segment)

    async def _loaded(self, part: SegmentCursor) -> tuple[list[Block], int]:
        """Reads a chunk in a thread, as soon as there is a descriptor for it. Raises SegmentDamaged."""
        connection = self._connection
        while True:
            try:
                load = partial(part.load, connection.rounds.window.nbytes)
                return await connection.node.host.workers.in_thread(load)
            except Overloaded as error:
                log.warning("a stream waits: %s", error)
            await trio.sleep(DESCRIPTOR_WAIT_SECONDS)


def _joined(buffers: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Returns the same bytes in fewer buffers: small neighbours are joined, large ones stay as they are."""
    joined: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for buffer in buffers:
        if len(buffer) < JOIN_BYTES_MAX:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
