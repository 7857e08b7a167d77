"""Pushes the segments of partitions to one replica, on the streams of its connection (docs/protocol/segments.md).

    chain changed ──> the next link without the replica's acknowledgement ──> SEGMENT_OFFER
    SEGMENT_ACCEPT ──> PRODUCERS, SINKS, parts by the segment sender, at most WINDOW_PARTS without an acknowledgement
    SEGMENT_ACK of the last part, or a decline that says that it is there ──> the acknowledgement, and the next link

Changes of the chain while an offer is under way are folded: the next offer is chosen from the newest chain. A segment
whose transfer broke is offered again first, on any connection of its replica (broken_transfers.py). The state of an
offer is `chain.offering.Target`.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.errors import ProtocolError, TailraceError, Unreachable
from tailrace.link.backoff import backoff_seconds
from tailrace.model import EndReason
from tailrace.segment.ends import VERSION_PLAIN
from tailrace.wire.file_parts import PART_BYTES_MAX
from tailrace.wire.push_messages import (
    SegmentAccept,
    SegmentAck,
    SegmentAnswer,
    SegmentDecline,
    SegmentOffered,
    transit_header,
)
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.chain import ChainLink, OfferEvent, OfferState, Target, advance, next_link, reconnected
from tailrace_server.chain.offering import offered
from tailrace_server.host.randomness import fraction
from tailrace_server.partition.links import links_of
from tailrace_server.partition.ttls import unread_ttls
from tailrace_server.segment import Segment, SegmentDamaged
from tailrace_server.serving.segment_sender import WaitingPart
from tailrace_server.state.last_batches import to_json
from tailrace_server.stream.replication_stream import SegmentStream, encode_producers
from tailrace_server.upkeep.flushed_segment import lacks_end

if TYPE_CHECKING:
    from tailrace_server.serving.segment_sender import SendingConnection

log = logging.getLogger("tailrace.server")

# The partitions of a connection whose segments are offered or sent at the same time.
OFFERS_MAX = 4
# The parts of an offer that are sent before the first of them is acknowledged. A follower writes two at a time.
WINDOW_PARTS = 4
# An offer without any answer for so many seconds is made again. A part that was lost on the way, or an answer, must not
# hold up a partition for ever. A follower that takes longer for a merge answers the next offer that it has the segment.
ANSWER_SECONDS_MAX = 60.0
# The longest pause in seconds after a decline or an error.
PAUSE_SECONDS_MAX = 5.0


class _Offering:
    """The offers of one partition. ``segment`` is pinned while it is offered or sent."""

    def __init__(self, stream: SegmentStream, target: Target) -> None:
        self.stream = stream
        self.target = target
        self.link: ChainLink | None = None  # that of ``segment``
        self.segment: Segment | None = None
        self.accepted = 0  # the bytes that the replica had when it accepted
        self.held = 0  # the bytes that it has acknowledged since, and ``accepted``
        self.sent = 0
        self.deadline: trio.CancelScope | None = None  # of the next answer
        self.is_closed = False
        self.tries = 0  # pauses since the last acknowledgement

    @property
    def is_under_way(self) -> bool:
        """Whether an offer was sent, and its last answer has not come. The next one may be prepared meanwhile."""
        return self.target.state in (OfferState.WAITING, OfferState.SENDING)


class SegmentOffers:
    """The offers on one connection of a replica."""

    def __init__(self, connection: SendingConnection) -> None:
        self._connection = connection
        self._node = connection.node
        self._offerings: dict[int, _Offering] = {}  # by stream id
        self._due: dict[_Offering, None] = {}  # idle ones that may have something to offer, in their turn
        self._active = 0  # offers that are prepared, wait for an answer, or are sent
        self._frames: list[bytes] = []

    def open(self, stream: SegmentStream, placement_id: bytes) -> None:
        """Offers the segments of the stream's partition from now on; `close` ends it.

        The replica stands at ``delivered_seq``: it has acknowledged nothing above.
        """
        partition = stream.partition
        chain, target = reconnected(links_of(partition), Target(placement_id), stream.delivered_seq)
        partition.pushes.acknowledge(chain.links)
        offering = self._offerings[stream.id] = _Offering(stream, target)
        changed = partial(self._changed, offering)
        partition.pushes.watch_chain(changed)
        stream.when_closed(partial(self._close, offering, changed))
        self._changed(offering)

    def _close(self, offering: _Offering, changed: partial[None]) -> None:
        offering.stream.partition.pushes.unwatch_chain(changed)
        offering.is_closed = True
        self._due.pop(offering, None)
        del self._offerings[offering.stream.id]
        self._keep_broken(offering)
        self._let_go(offering)

    def take_frames(self) -> list[bytes]:
        """Returns the frames to send now."""
        frames, self._frames = self._frames, []
        return frames

    def answered(self, stream_id: int, answer: SegmentAnswer) -> None:
        """Takes the replica's answer to an offer. Ignores one to an older offer, or a repeated one. ProtocolError."""
        offering = self._offerings.get(stream_id)
        if offering is None or answer.number != offering.target.number or not offering.is_under_way:
            return
        assert offering.segment is not None, "a segment was offered"
        if offering.deadline is not None:
            offering.deadline.deadline = trio.current_time() + ANSWER_SECONDS_MAX
        if isinstance(answer, SegmentDecline):
            self._declined(offering, answer)
        elif answer.offset > offering.segment.nbytes:
            raise ProtocolError(
                f"offset {answer.offset} of segment {offering.target.segment_id.hex()}, which has "
                f"{offering.segment.nbytes} bytes"
            )
        elif isinstance(answer, SegmentAccept):
            self._accepted(offering, answer)
        else:
            self._acknowledged(offering, answer)

    # Offers

    def _changed(self, offering: _Offering) -> None:
        if offering.target.state is OfferState.IDLE:
            self._due[offering] = None
            self._start_due()

    def _start_due(self) -> None:
        while self._due and self._active < OFFERS_MAX and not self._connection.is_closing:
            offering = next(iter(self._due))
            del self._due[offering]
            if offering.segment is not None:
                continue
            found = self._next(offering)
            if found is None:
                self._end_if_due(offering)
                continue
            link, segment = found
            if segment.version != VERSION_PLAIN and not self._connection.takes_ttls:
                self._connection.nursery.start_soon(self._refuse, offering, segment)
                continue
            self._node.storage.pins.pin(segment)
            offering.link, offering.segment = found
            offering.accepted = offering.held = offering.sent = 0
            self._active += 1
            self._connection.nursery.start_soon(self._offer, offering, link, segment)

    async def _refuse(self, offering: _Offering, segment: Segment) -> None:
        """Ends the stream, which may have to be opened before: the replica could not read the segment."""
        if offering.is_closed:
            return
        why = unread_ttls(offering.stream.partition, segment.identity.after_seq + 1)
        self._connection.rounds.close(offering.stream.id, EndReason.FORBIDDEN, why)
        self._connection.has_news()
        self._node.connections.turn_ended()

    def _next(self, offering: _Offering) -> tuple[ChainLink, Segment] | None:
        """Returns the segment to offer next; None: the replica has all, or its offer is not idle."""
        partition, target = offering.stream.partition, offering.target
        broken = self._node.storage.broken_transfers.find(partition, target.placement)
        link = next_link(links_of(partition), target, None if broken is None else broken.link)
        if link is None:
            return None
        if broken is not None and link is broken.link:
            return link, broken.segment
        self._node.storage.broken_transfers.end(partition, target.placement)
        segments = partition.chain.segments
        return link, next(each for each in segments if each.identity.segment_id == link.id)

    def _end_if_due(self, offering: _Offering) -> None:
        """Has a segment made that brings the replica to the end of a history of which all rows were trimmed."""
        partition = offering.stream.partition
        if lacks_end(partition) and offering.stream.delivered_seq < partition.flushed_seq:
            self._connection.nursery.start_soon(self._flush_end, offering)

    async def _flush_end(self, offering: _Offering) -> None:
        try:
            await self._node.storage.flusher.flush_end(offering.stream.partition)
        except (OSError, TailraceError) as error:
            if not offering.is_closed:
                log.warning("the end of a trimmed history is offered later: %s", error)
                self._pause(offering)

    async def _offer(self, offering: _Offering, link: ChainLink, segment: Segment) -> None:
        """Offers a segment, after its checksum was read in a thread."""
        try:
            checksum = await self._node.host.workers.in_thread(segment.read_checksum)
        except TailraceError as error:
            if not offering.is_closed:
                self._failed(offering, error)
            return
        if offering.is_closed or offering.segment is not segment:
            return
        partition = offering.stream.partition
        offering.target = offered(offering.target, link)
        message = SegmentOffered(
            partition=partition.id,
            number=offering.target.number,
            term=self._node.leaderships.of_partition(partition).term,
            placement_id=self._node.identity.placement_id,
            id=link.id,
            base_id=link.base_id,
            included_ids=link.included_ids,
            is_major=link.is_major,
            branch=link.branch,
            after_seq=link.after_seq,
            last_seq=link.last_seq,
            purge_seq=link.purge_seq,
            trim_seq=partition.trim_seq,
            nbytes=segment.nbytes,
            checksum=checksum,
        )
        self._send(message.encode(offering.stream.id))
        self._node.connections.turn_ended()
        with trio.move_on_after(ANSWER_SECONDS_MAX) as deadline:
            offering.deadline = deadline
            await trio.sleep_forever()
        if deadline is offering.deadline:  # else the offer has ended
            offering.deadline = None
            self._failed(offering, Unreachable(f"a replica has not answered for {ANSWER_SECONDS_MAX:g} s"))

    def _send(self, *frames: bytes) -> None:
        self._frames += frames
        self._connection.has_news()

    def _keep_broken(self, offering: _Offering) -> None:
        """Keeps the segment of a transfer that ends early, if it may have brought the replica further.

        Acknowledgements may be lost with the connection: the next answer tells what has come.
        """
        link, segment = offering.link, offering.segment
        if link is not None and segment is not None and offering.sent > offering.accepted:
            broken_transfers = self._node.storage.broken_transfers
            broken_transfers.broke(offering.stream.partition, offering.target.placement, link, segment, offering.held)

    def _let_go(self, offering: _Offering) -> None:
        """Ends the offer that is under way, and lets another partition's begin."""
        segment, offering.segment, offering.link = offering.segment, None, None
        deadline, offering.deadline = offering.deadline, None
        if deadline is not None:
            deadline.cancel()
        if segment is not None:
            self._node.storage.pins.unpin(segment)
            self._active -= 1
            self._start_due()

    # Answers

    def _accepted(self, offering: _Offering, answer: SegmentAccept) -> None:
        if offering.target.state is not OfferState.WAITING:
            return  # repeated: the parts are on their way
        stream, segment = offering.stream, offering.segment
        assert segment is not None, "a segment was offered"
        if not answer.offset and self._node.storage.pins.is_retired(segment):
            self._offer_newer(offering)
            return
        self._advance(offering, OfferEvent.ACCEPT)
        partition, last_seq = stream.partition, segment.identity.last_seq
        sinks = to_json(partition.sinks.as_of(last_seq))
        self._send(
            *encode_producers(partition, last_seq, self._node.clock.monotonic(), stream.id),
            *([SinksTold(partition.id, last_seq, sinks).encode(stream.id)] if sinks else []),
        )
        offering.sent = offering.accepted = offering.held = answer.offset
        self._send_parts(offering, segment, answer.offset)

    def _offer_newer(self, offering: _Offering) -> None:
        """Gives up a replaced segment of which the replica has nothing: the one that replaced it has all its rows."""
        self._node.storage.broken_transfers.end(offering.stream.partition, offering.target.placement)
        self._advance(offering, OfferEvent.FAILED)
        self._advance(offering, OfferEvent.RETRY)
        self._let_go(offering)
        self._changed(offering)

    def _acknowledged(self, offering: _Offering, answer: SegmentAck) -> None:
        segment = offering.segment
        assert segment is not None, "a segment was offered"
        if offering.target.state is not OfferState.SENDING or answer.offset > offering.sent:
            raise ProtocolError(f"SEGMENT_ACK of {answer.offset} bytes, of which {offering.sent} were sent")
        offering.held = max(offering.held, answer.offset)
        if answer.offset < segment.nbytes:
            self._send_parts(offering, segment, answer.offset)
        else:
            offering.tries = 0
            self._node.storage.broken_transfers.end(offering.stream.partition, offering.target.placement)
            self._advance(offering, OfferEvent.ACK)
            self._let_go(offering)
            self._changed(offering)

    def _send_parts(self, offering: _Offering, segment: Segment, held: int) -> None:
        """Sends parts until WINDOW_PARTS are under way; the replica has the first ``held`` bytes."""
        stream_id, number = offering.stream.id, offering.target.number
        while offering.sent < segment.nbytes and offering.sent - held < WINDOW_PARTS * PART_BYTES_MAX:
            nbytes = min(PART_BYTES_MAX, segment.nbytes - offering.sent)
            head = transit_header(number, offering.sent, nbytes, stream_id)
            part = WaitingPart(head, segment, offering.sent, nbytes, partial(self._part_failed, offering, number))
            self._connection.segments.push(part)
            offering.sent += nbytes

    def _part_failed(self, offering: _Offering, number: int, error: TailraceError) -> None:
        """Ends the offer ``number``, unless it has ended: another part has failed, or the replica has answered."""
        is_under_way = offering.target.state is OfferState.SENDING and offering.target.number == number
        if not offering.is_closed and is_under_way:
            self._failed(offering, error)

    def _declined(self, offering: _Offering, answer: SegmentDecline) -> None:
        event, segment = OfferEvent[answer.reason.name], offering.segment
        if event is OfferEvent.INVALID and segment is not None and offering.sent == segment.nbytes:
            self._node.storage.damage_checks.reported([segment])  # all of it came, and was not as it was offered
        if event in (OfferEvent.OVERLOADED, OfferEvent.INFLIGHT):
            self._keep_broken(offering)
        else:
            self._node.storage.broken_transfers.end(offering.stream.partition, offering.target.placement)
        self._advance(offering, event)
        self._let_go(offering)
        if offering.target.state is OfferState.PAUSED or event is OfferEvent.OUT_OF_ORDER:
            if event is OfferEvent.INVALID:
                log.warning(
                    "partition %s of feed %s: a follower declines segment %s: %s",
                    *(offering.stream.partition.id, offering.stream.partition.feed_name),
                    *(offering.target.segment_id.hex(), answer.message),
                )
            self._pause(offering)
        else:
            self._changed(offering)

    def _pause(self, offering: _Offering) -> None:
        offering.tries += 1
        jitter = partial(fraction, self._node.host.randomness)
        seconds = min(backoff_seconds(offering.tries, jitter), PAUSE_SECONDS_MAX)
        self._connection.nursery.start_soon(self._retry, offering, seconds)

    async def _retry(self, offering: _Offering, seconds: float) -> None:
        await trio.sleep(seconds)
        if offering.is_closed:
            return
        if offering.target.state is OfferState.PAUSED:
            self._advance(offering, OfferEvent.RETRY)
        self._changed(offering)

    def _failed(self, offering: _Offering, error: TailraceError) -> None:
        """Offers the segment again after a pause if no descriptor was free for it.

        If it is damaged, the stream ends. The replica asks for it again, and knows that this node cannot read its copy.
        """
        if not isinstance(error, SegmentDamaged):
            log.warning("a segment is offered again later: %s", error)
            self._keep_broken(offering)
            self._advance(offering, OfferEvent.FAILED)
            self._let_go(offering)
            self._pause(offering)
            return
        self._node.storage.found_damage(error)
        offering.sent = offering.accepted  # it is not kept
        self._node.storage.broken_transfers.end(offering.stream.partition, offering.target.placement)
        self._connection.rounds.close(offering.stream.id, EndReason.ERROR, str(error))
        self._connection.has_news()
        self._node.connections.turn_ended()

    def _advance(self, offering: _Offering, event: OfferEvent) -> None:
        partition = offering.stream.partition
        chain = links_of(partition)
        after, offering.target = advance(chain, offering.target, offering.target.number, event)
        if after is not chain:
            partition.pushes.acknowledge(after.links)
