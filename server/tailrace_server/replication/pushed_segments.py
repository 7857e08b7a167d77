"""Receives the segments that a leader pushes: the follower's side of docs/internals/chain.md.

offer ── judged ──> accepted from an offset on, or declined
parts ── written ──> acknowledged one by one
the last part ── verified, judged again ──> fast-forward: the file becomes a link of the chain, and no row is read
                                        ──> merge: its rows above the last seq become a segment of this node's own
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import BadBlock, BadSegment, ProtocolError
from tailrace.model.failover import FailoverLog
from tailrace.wire.push_messages import (
    DeclineReason,
    SegmentAccept,
    SegmentAck,
    SegmentAnswer,
    SegmentDecline,
    SegmentOffered,
    SegmentTransit,
)
from tailrace_server.chain import ChainLink, LinkedChain, OfferCase, Receiver, SegmentOffer
from tailrace_server.chain.receiving import merged_history
from tailrace_server.manifest import producers_to_json
from tailrace_server.partition.links import links_of
from tailrace_server.partition.replica_apply import OtherHistory, apply_sinks, expect_producers
from tailrace_server.replication.role import Role
from tailrace_server.segment import Segment, SegmentDamaged
from tailrace_server.state import last_batches
from tailrace_server.upkeep.incoming_segments import IncomingSegment, PushedFile
from tailrace_server.upkeep.received_chain import ReceivedChain, install_received_chain, prepare_to_receive
from tailrace_server.upkeep.snapshot_segment import SnapshotSegment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.wire.replica_messages import Producers
    from tailrace.wire.stage_messages import SinksTold
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode

# The bytes of a received segment that a merge reads at a time.
_READ_BYTES = 1024 * 1024


class _Transfer:
    """A segment that is being received, with the leader's tables as of its last seq."""

    def __init__(self, offer: SegmentOffered, incoming: IncomingSegment) -> None:
        self.offer = offer
        self.incoming = incoming
        self.producers: Producers | None = None
        self.sinks: SinksTold | None = None

    @property
    def link(self) -> ChainLink:
        return link_of(self.offer)


def link_of(offer: SegmentOffered) -> ChainLink:
    """Returns the link that is offered."""
    return ChainLink(
        id=offer.id,
        base_id=offer.base_id,
        included_ids=offer.included_ids,
        is_major=offer.is_major,
        branch=offer.branch,
        after_seq=offer.after_seq,
        last_seq=offer.last_seq,
        purge_seq=offer.purge_seq,
    )


class PushedSegments:
    """The segments of one feed that its leader pushes; for one following of the leader."""

    def __init__(self, node: LocalNode, leadership: Leadership, feed: Feed) -> None:
        self._node = node
        self._storage = node.storage
        self._leadership = leadership
        self._feed = feed
        self._transfers: dict[Partition, _Transfer] = {}

    def is_receiving(self, partition: Partition) -> bool:
        """Returns whether an accepted segment of ``partition`` is on its way."""
        return partition in self._transfers

    def told_producers(self, partition: Partition, told: Producers) -> None:
        """Notes the leader's producers as of the last seq of the segment that is on its way, if one is."""
        if partition in self._transfers:
            self._transfers[partition].producers = told

    def told_sinks(self, partition: Partition, told: SinksTold) -> None:
        """Notes the leader's last batches as of the last seq of the segment that is on its way, if one is."""
        if partition in self._transfers:
            self._transfers[partition].sinks = told

    def forget(self, partition: Partition) -> None:
        """Ends the transfer of a partition, whose stream has ended or rolls back. The half file stays."""
        if self._transfers.pop(partition, None) is not None:
            self._storage.incoming.interrupt(partition)

    def interrupt(self) -> None:
        """Ends all transfers. The half files stay, so that they can be continued."""
        for partition in list(self._transfers):
            self.forget(partition)

    async def settle(self, partition: Partition) -> None:
        """Makes sure that the manifest on disk is of the partition's chain, after a failed installation.

        Rows that come by stream would be hidden otherwise. Raises NoSpace, OSError.
        """
        if partition in self._storage.receive_failures:
            await self._storage.installer.settle(partition)

    async def offered(self, partition: Partition, offer: SegmentOffered, leaders_log: FailoverLog) -> SegmentAnswer:
        """Returns the answer to an offer. The leader has given up an earlier transfer of the partition.

        Raises NotDurable, OSError if this node cannot flush the rows that came by stream before; NoSpace if the file
        does not fit.
        """
        storage = self._storage
        self.forget(partition)
        why_not_yet = storage.receive_failures.why_not_yet(partition)
        if why_not_yet:
            return SegmentDecline(offer.number, DeclineReason.OVERLOADED, why_not_yet)
        await self.settle(partition)
        if partition.tree.block_count:
            with trio.CancelScope(shield=True):
                await storage.flusher.flush_all(partition)
        case = self._receiver(partition, leaders_log).case_of(_judged(offer))
        if not case.is_accepted:
            return self._declined(offer, case, partition)
        if storage.pins.is_leaving(offer.id):
            message = "its file was here before, and is just being removed"
            return SegmentDecline(offer.number, DeclineReason.OVERLOADED, message)
        needed = max(offer.nbytes - storage.incoming.half_bytes(partition), 0)
        await storage.space.check_room(needed, f"segment {offer.id.hex()} of the leader")
        if storage.incoming.are_full:
            return SegmentDecline(offer.number, DeclineReason.OVERLOADED, "too many segments are being received")
        incoming = storage.incoming.begin(partition, PushedFile(offer.id, offer.nbytes, offer.checksum))
        self._transfers[partition] = _Transfer(offer, incoming)
        return SegmentAccept(offer.number, incoming.offset)

    def may_wait(self, partition: Partition, part: SegmentTransit) -> bool:
        """Returns whether ``part`` may wait for the next one, to be written with it: it is on its way."""
        transfer = self._transfers.get(partition)
        if transfer is None or transfer.offer.number != part.number:
            return False
        return part.offset + len(part.data) < transfer.offer.nbytes

    async def got_parts(
        self, partition: Partition, parts: Sequence[SegmentTransit], leaders_log: FailoverLog
    ) -> SegmentAnswer | None:
        """Writes parts, and installs the segment if the last one is among them. Returns the answer; None: none is due.

        Raises ProtocolError if a part ends beyond the file; NoSpace, NotDurable, OSError if this node cannot
        write; UnknownFeed if the feed was dropped.
        """
        transfer = self._transfers.get(partition)
        if transfer is None:
            return None
        incoming, offer = transfer.incoming, transfer.offer
        parts = [part for part in parts if part.number == offer.number]  # others are of a transfer that has ended here
        end = incoming.offset
        for part in parts:
            if part.offset + len(part.data) > offer.nbytes:
                raise ProtocolError(
                    f"SEGMENT_TRANSIT: {len(part.data)} bytes from {part.offset} on, of a file of {offer.nbytes} bytes"
                )
            if part.offset != end:  # the leader could not read the part between them
                self.forget(partition)
                message = f"a part begins at {part.offset}, and the file ends at {end}"
                return SegmentDecline(offer.number, DeclineReason.OVERLOADED, message)
            end += len(part.data)
        if not parts:
            return None
        if not incoming.offset:
            await prepare_to_receive(self._storage, partition)
        if end < offer.nbytes:
            await self._node.host.workers.in_thread(partial(_write, incoming, parts))
            return SegmentAck(offer.number, incoming.offset)
        with trio.CancelScope(shield=True):
            answer = await self._complete(partition, transfer, parts, leaders_log)
        return answer  # noqa: RET504 - a scope might swallow a cancellation, to mypy

    async def _complete(
        self, partition: Partition, transfer: _Transfer, parts: Sequence[SegmentTransit], leaders_log: FailoverLog
    ) -> SegmentAnswer:
        """Writes the last parts, and installs the whole file. Returns the answer."""
        offer, incoming, storage = transfer.offer, transfer.incoming, self._storage
        await self._node.host.workers.in_thread(partial(_write, incoming, parts))
        try:
            await self._node.host.workers.in_thread(incoming.finish)
            case = self._receiver(partition, leaders_log).case_of(_judged(offer))
            if case is OfferCase.FAST_FORWARD:
                await self._fast_forward(partition, transfer, leaders_log)
            else:
                try:
                    if case is OfferCase.MERGE:
                        await self._merge(partition, transfer, leaders_log)
                finally:
                    await self._remove(partition, incoming)
        except (BadSegment, BadBlock, SegmentDamaged, OtherHistory) as error:
            why = storage.receive_failures.failed(partition, error)
            return SegmentDecline(offer.number, DeclineReason.INVALID, why)
        finally:
            self._transfers.pop(partition, None)
            storage.incoming.end(partition)
        if case.is_accepted:
            storage.receive_failures.succeeded(partition)
            return SegmentAck(offer.number, offer.nbytes)
        return self._declined(offer, case, partition)

    def _declined(self, offer: SegmentOffered, case: OfferCase, partition: Partition) -> SegmentDecline:
        if case is OfferCase.EXISTS:
            self._storage.receive_failures.succeeded(partition)
        message = f"the partition stands at seq {partition.high_seq}, term {partition.log.term}"
        return SegmentDecline(offer.number, DeclineReason[case.name], message)

    async def _fast_forward(self, partition: Partition, transfer: _Transfer, leaders_log: FailoverLog) -> None:
        """Puts the received file into the chain, in one manifest. Reads no row."""
        link, storage = transfer.link, self._storage
        chain = links_of(partition).installed(link)
        assert chain is not None, "the offer was judged now"
        seq = chain.last_seq
        try:
            await install_received_chain(
                storage,
                partition,
                ReceivedChain(
                    seq,
                    tuple(each.id for each in chain.links),
                    leaders_log,
                    max(partition.purge_seq, min(link.purge_seq, seq)),
                    _trim_seq(partition, chain, transfer.offer),
                    self._producers(partition, transfer, seq),
                    self._sinks(partition, transfer, seq),
                    frozenset((link.id,)),
                ),
            )
        except BaseException:
            if not self._is_named(partition, transfer.incoming):
                storage.installer.orphan(partition, transfer.incoming.path)
            raise

    def _producers(self, partition: Partition, transfer: _Transfer, seq: int) -> dict[str, Any]:
        """Returns the table of producers as of ``seq``: the leader's, unless the partition's own one is as new."""
        told = transfer.producers
        if told is not None and told.seq == seq > partition.high_seq:
            return told.value
        return producers_to_json(partition.producers, seq, self._node.clock.monotonic())

    @staticmethod
    def _sinks(partition: Partition, transfer: _Transfer, seq: int) -> dict[str, Any]:
        told = transfer.sinks
        if told is not None and told.seq == seq > partition.high_seq:
            return told.value
        return last_batches.to_json(partition.sinks.as_of(seq))

    async def _merge(self, partition: Partition, transfer: _Transfer, leaders_log: FailoverLog) -> None:
        """Writes the rows of the received file above the last seq as a segment, which includes the received one."""
        link, storage, workers = transfer.link, self._storage, self._node.host.workers
        now = self._node.clock.monotonic()
        if transfer.producers is not None:
            expect_producers(partition, transfer.producers.value, transfer.producers.seq, now)
        if transfer.sinks is not None:
            apply_sinks(partition, transfer.sinks.value, transfer.sinks.seq, storage.journal)
        segment = await workers.in_thread(lambda: Segment.open(storage.store.segment_files, transfer.incoming.path))
        history = merged_history(links_of(partition), link)
        filling = SnapshotSegment(storage, partition, partition.high_seq, link.last_seq, link.purge_seq, history)
        try:
            index = segment.block_after(partition.high_seq)
            while index < segment.blocks:
                blocks, index = await workers.in_thread(partial(segment.read_blocks, index, _READ_BYTES))
                for block in blocks:
                    if block.header.last_seq > partition.high_seq:
                        filling.add(block)
                await filling.flow()
            await filling.finish(leaders_log)
        finally:
            filling.abandon()
            segment.close()

    async def _remove(self, partition: Partition, incoming: IncomingSegment) -> None:
        """Removes a received file that is not installed, unless the chain or a reader has the same segment."""
        if self._is_named(partition, incoming):
            return

        def remove() -> None:
            with contextlib.suppress(OSError):  # the next start removes it
                self._node.host.disk.remove(incoming.path)

        await self._node.host.workers.in_thread(remove)

    def _is_named(self, partition: Partition, incoming: IncomingSegment) -> bool:
        """Returns whether the chain or a reader has the segment, or its former file is being removed anyway."""
        pins = self._storage.pins
        others = (*partition.chain.segments, *pins.retired_of(partition.feed_id, partition.id))
        return any(segment.path == incoming.path for segment in others) or pins.is_leaving(incoming.pushed.id)

    def _receiver(self, partition: Partition, leaders_log: FailoverLog) -> Receiver:
        """Returns the state by which offers are judged. No transfer is under way then: an offer ends the one before."""
        leadership = self._leadership
        return Receiver(links_of(partition), leaders_log, leadership.term, leadership.role is Role.LEADER)


def _write(incoming: IncomingSegment, parts: Sequence[SegmentTransit]) -> None:
    for part in parts:
        incoming.add(part.data)


def _judged(offer: SegmentOffered) -> SegmentOffer:
    return SegmentOffer(offer.term, offer.placement_id, link_of(offer))


def _trim_seq(partition: Partition, chain: LinkedChain, offer: SegmentOffered) -> int:
    """Returns the trim seq of ``chain``: the leader's if the chain begins with the offered segment."""
    if chain.links[0].id != offer.id:
        return partition.trim_seq
    return max(partition.trim_seq, min(offer.trim_seq, chain.last_seq))
