"""Catches a partition of a follower up by its leader's segments. A stream goes on from the checkpoint's seq.

    checkpoint ──> compare ──> missing files, several at once ──> rollback, if rows parted ──> one manifest ──> stream
         └──> stream from the checkpoint's seq, meanwhile, into the file AHEAD (ahead_stream.py)

The comparison and the cutting of parts are those of `tailrace fetch` (``tailrace.copies.compare``). A checkpoint that
the leader does not keep any longer is replaced by another one; files that have come are kept. Until the manifest is
durable the partition is as it was, or rolled back to the last seq that it has in common with the leader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.copies.compare import (
    WINDOW_BYTES_FIRST,
    Action,
    PartCutter,
    compare,
    copy_of,
    next_window,
    part_bytes,
)
from tailrace.copies.layout import PartitionCopy, SegmentCopy
from tailrace.errors import BadSegment, TailraceError, UnknownCheckpoint
from tailrace.link.address import Address
from tailrace.model import Level
from tailrace.wire.segment_messages import CheckpointRequest, PartitionCheckpoint, SegmentRelease
from tailrace_server.replication.ahead_stream import AheadStream
from tailrace_server.replication.segment_source import SegmentSource, segment_source
from tailrace_server.upkeep.received_chain import ReceivedChain, install_received_chain, prepare_to_receive

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.local_node import LocalNode
    from tailrace_server.segment import Segment

log = logging.getLogger("tailrace.server")

# The checkpoints that are taken for a partition without a new byte in between.
TRIES_MAX = 3


class NotCaughtUp(TailraceError):
    """The node's segments do not bring this partition further: it is streamed."""


class CatchUp:
    """The catching-up of one partition. ``run`` may be called once."""

    def __init__(
        self,
        node: LocalNode,
        partition: Partition,
        address: Address,
        role: str,
        term: int,
        roll_back: Callable[[Partition, int], Awaitable[int]],
        is_stopped: Callable[[], bool],
        ahead: AheadStream | None,
        damaged: frozenset[bytes] = frozenset(),
    ) -> None:
        """``roll_back`` rolls a partition back to a seq or below. After ``is_stopped()`` nothing is changed any more.

        ``ahead`` streams the rows behind the segments meanwhile; None: no rows. ``damaged``: the ids of segments whose
        files here cannot be read. They come again, and the partition may stand at the seq of the checkpoint already.

        The node at ``address`` has to be in ``role`` and ``term``, as when it agreed to be streamed from.
        """
        self._node = node
        self._partition = partition
        self._address = address
        self._role = role
        self._term = term
        self._roll_back = roll_back
        self._is_stopped = is_stopped
        self._ahead = ahead
        self._damaged = damaged
        self._window_bytes = WINDOW_BYTES_FIRST
        self._received_bytes = 0

    async def run(self) -> None:
        """Copies the segments of the node and installs them.

        Raises NotCaughtUp, and what else keeps the partition from being copied (TailraceError, OSError); it is as it
        was then, or rolled back.
        """
        storage, partition = self._node.storage, self._partition
        async with storage.received.limiter:
            files = storage.received.of(partition)
            files.in_use = True
            try:
                await self._run()
            finally:
                files.in_use = False
                files.close()
            await storage.received.discard(partition)

    async def _run(self) -> None:
        tries, bytes_before = 0, 0
        while True:
            try:
                timeout_s = self._node.config.replication.step_timeout_s
                async with segment_source(self._node, self._address, self._role, self._term, timeout_s) as source:
                    await self._copy(source)
                return
            except UnknownCheckpoint:
                tries = tries + 1 if self._received_bytes == bytes_before else 1
                bytes_before = self._received_bytes
                if tries == TRIES_MAX:
                    raise

    async def _copy(self, source: SegmentSource) -> None:
        """Takes a checkpoint, and makes the partition what it says."""
        storage, partition = self._node.storage, self._partition
        asker = self._node.identity.placement_id
        request = CheckpointRequest(
            partition.feed_id, partition.id, Level.DISK, state=True, asker=asker, flush=bool(self._damaged)
        )
        told = await source.checkpoint(request)
        self._check(told)
        await prepare_to_receive(storage, partition)
        here = self._segments_here(told)
        for segment in here.values():  # a compaction or a trim may replace them meanwhile
            storage.pins.pin(segment)
        try:
            missing = [s for s in copy_of(told).segments if s.id not in here]
            again = frozenset(segment.id for segment in missing if segment.id in self._damaged)
            received = ReceivedChain.of(told)._replace(again=again)
            receive = partial(self._receive, source, told, missing)
            await (receive() if self._ahead is None else self._ahead.run_beside(told.seq, told.log, receive))
            common = self._check(told)
            if self._is_stopped():
                return
            if common < partition.high_seq:
                with trio.CancelScope(shield=True):
                    await self._roll_back(partition, common)
            if self._is_stopped():
                return
            await install_received_chain(storage, partition, received)
            # In the same step: a cancellation comes next, if the leader is not followed any more.
            storage.received.installed(partition, received.segments)
        finally:
            for segment in here.values():
                storage.pins.unpin(segment)
        source.release(SegmentRelease(told.id))
        log.info(
            "partition %s of feed %s has caught up to seq %s by %s segments of %s: %s bytes were fetched",
            *(partition.id, partition.feed_name, told.seq, len(told.segments), self._address),
            self._received_bytes,
        )

    def _check(self, told: PartitionCheckpoint) -> int:
        """Returns the last seq in common. Raises NotCaughtUp if the checkpoint has nothing for this partition."""
        partition = self._partition
        if self._role == "follower" and told.log.term > self._term:
            raise NotCaughtUp(f"{self._address} follows a leader of term {told.log.term} by now")
        held = PartitionCopy(partition.id, partition.high_seq, partition.purge_seq, partition.log, ())
        action, common_seq = compare(held, told)
        if action is Action.REFUSE:
            raise NotCaughtUp(f"{self._address} has another branch of term {told.log.term}")
        if action is Action.KEEP or (told.seq <= common_seq and not self._damaged):
            raise NotCaughtUp(f"the segments of {self._address} end at seq {told.seq}, and common are {common_seq}")
        return common_seq if action is Action.ROLL_BACK else partition.high_seq

    def _segments_here(self, told: PartitionCheckpoint) -> dict[bytes, Segment]:
        """Returns those of the checkpoint's segments that this node has. NotCaughtUp if one is just being removed."""
        pins, partition = self._node.storage.pins, self._partition
        segments = [*pins.retired_of(partition.feed_id, partition.id), *partition.chain.segments]
        found = {segment.identity.segment_id: segment for segment in segments}
        for segment in told.segments:
            if segment.id not in found and pins.is_leaving(segment.id):
                raise NotCaughtUp(f"the file of segment {segment.id.hex()} is being removed here")
        here = found.keys() - self._damaged
        return {segment.id: found[segment.id] for segment in told.segments if segment.id in here}

    async def _receive(self, source: SegmentSource, told: PartitionCheckpoint, missing: list[SegmentCopy]) -> None:
        """Receives the missing files. Raises UnknownCheckpoint, BadSegment, NoSpace, OSError; received bytes stay."""
        node, monotonic = self._node, self._node.clock.monotonic
        files = node.storage.received.of(self._partition)
        await files.remove(kept={segment.id for segment in told.segments})  # the others take room
        begun = [(segment, files.offset(segment)) for segment in missing]
        wanted = sum(segment.nbytes - offset for segment, offset in begun)
        if wanted:
            await node.storage.space.check_room(wanted, f"the copy of {len(missing)} segments")
        cutter = PartCutter(begun)
        parts = cutter.next_parts(self._window_bytes, part_bytes(self._window_bytes))
        source.ask(told.id, parts)
        while parts:
            began_at = monotonic()
            received = await source.receive(parts)
            self._window_bytes = next_window(self._window_bytes, monotonic() - began_at)
            self._received_bytes += sum(part.nbytes for part in parts)
            parts = cutter.next_parts(self._window_bytes, part_bytes(self._window_bytes))
            source.ask(told.id, parts)  # on its way while the bytes are written
            try:
                await files.store_parts(received)
            except BadSegment:
                source.release(SegmentRelease(told.id, files.wrong))
                raise
