"""Partitions that are far behind catch up by segments, on the connection that their streams will use. Sans-IO.

    is_far_behind? ── SEGMENT_CHECKPOINT ── plan_segments ── SEGMENT_FETCH ... ── SEGMENT_RELEASE ── STREAM_REQUEST
                                                │                 └─ events: SnapshotStart, Mutations ..., SnapshotEnd
                                                └─ none: STREAM_REQUEST

The node sends the files from its page cache, and looks at no row. The events, positions and rings are those of a stream
that reads the same segments. If anything goes wrong, the partition asks for its stream, which decides.
Source: docs/protocol/streams.md, "Segments first".
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Protocol

from tailrace.consuming.catch_up_rules import (
    SegmentPlan,
    checkpoint_level,
    is_far_behind,
    plan_segments,
    snapshots_of,
)
from tailrace.consuming.events import Mutations, SnapshotEnd, SnapshotStart
from tailrace.consuming.fetched_range import BlockRange
from tailrace.consuming.partition_catch_up import PartitionCatchUp, SnapshotBegin
from tailrace.errors import BadBlock, BadSegment, ProtocolError, TailraceError, UnknownCheckpoint
from tailrace.model.failover import SEQ_MAX
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import (
    CheckpointRequest,
    PartitionCheckpoint,
    SegmentFetch,
    SegmentRelease,
)
from tailrace.wire.stream_messages import SnapshotStartMessage, StreamOk

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import NoReturn

    from tailrace.block import Block
    from tailrace.consuming.fetched_range import FetchedRange
    from tailrace.consuming.partition import ConsumedPartition
    from tailrace.consuming.partition_catch_up import CopyStep
    from tailrace.consuming.rollbacks import Queued
    from tailrace.consuming.subscription import Subscription
    from tailrace.wire.frames import Frame

# The partitions that read segments at a time. Others wait: a node keeps few checkpoints, and a position between
# snapshots is reached sooner.
PARTITIONS_AT_ONCE = 4
# The SEGMENT_FETCHes under way: fewer than a node lets wait on one connection.
FETCHES_MAX = 48
# The blocks that are asked for together. Most frames of this size lie in one read of a socket, and need no copy.
RANGE_BYTES = 128 * 1024
# The checkpoints that are taken without a block in between, and the seconds for which the stream is asked for then.
TRIES_MAX = 3
STREAM_SECONDS = 60.0


class CatchingStreams(Protocol):
    """The streams of the connection, as far as catching up uses them."""

    @property
    def now(self) -> float: ...
    def new_id(self) -> int: ...
    def agree(self, partition: ConsumedPartition, answer: StreamOk) -> None: ...
    def wait(self, partition: ConsumedPartition, reason: str, retry_at: float) -> None: ...
    def emit(self, queued: Iterable[Queued]) -> None: ...
    def fail(self, error: TailraceError) -> NoReturn: ...


class CatchUp:
    """All partitions of a consumer that catch up by segments. Only this file sets the fields."""

    def __init__(self, subscription: Subscription, streams: CatchingStreams, window_bytes: int) -> None:
        """``window_bytes`` bounds the bytes that were asked for, or have come, and were not handed out."""
        self._subscription = subscription
        self._mode = subscription.catch_up
        self._streams = streams
        self._window_bytes = window_bytes
        self._selects, self._keys_only = subscription.filter.selects, subscription.filter.keys_only
        self._rows_filter = subscription.filter._replace(keys_only=False)  # `Mutations` leaves values out
        self._high_seqs: Mapping[int, int] = {}
        # Those that wait for their turn, and those that read segments. Invariant: their state is COPYING, and no
        # partition is in both.
        self._queued: collections.OrderedDict[int, ConsumedPartition] = collections.OrderedDict()
        self._running: collections.OrderedDict[int, PartitionCatchUp] = collections.OrderedDict()
        self._tries: collections.Counter[int] = collections.Counter()  # checkpoints since the last block, by partition
        self._stream_until: dict[int, float] = {}  # partitions that ask for streams until then, in monotonic seconds
        # Of this connection: the requests by id, and the checkpoints to release.
        self._asked_checkpoints: dict[int, PartitionCatchUp] = {}
        self._asked_parts: dict[int, tuple[PartitionCatchUp, FetchedRange, int]] = {}
        self._releases: list[SegmentRelease] = []
        self._released: set[int] = set()
        self._node_id = ""
        self._lacking: set[str] = set()  # the ids of nodes that know no segments
        # Checkpoints of another program, until the node has them no longer.
        self._given: dict[int, PartitionCheckpoint] = dict(subscription.checkpoints)
        self._renewals = subscription.renewals
        self._is_known = False  # the node of this connection has answered about segments

    # The connection

    def connection_lost(self) -> None:
        """Drops what is under way: all partitions ask again, from where the program's events have come."""
        for copy in self._running.values():
            self._release(copy)
            copy.end()
        self._queued.clear()
        self._running.clear()
        self._asked_checkpoints.clear()
        self._asked_parts.clear()
        self._released.clear()
        self._is_known = False
        if self._renewals is not None:
            self._renewals.connection_made()

    def greeted(self, node_id: str) -> None:
        """Notes which node has said hello."""
        if node_id != self._node_id:
            self._releases.clear()
        self._node_id = node_id

    def heard_of(self, high_seqs: Mapping[int, int]) -> None:
        """Notes the newest seq of each partition of the node."""
        self._high_seqs = high_seqs

    def node_refused(self) -> None:
        """Notes that the node ends the connection because of a frame: an older one knows no SEGMENT_CHECKPOINT.

        Raises ProtocolError, for good, if the program wants segments.
        """
        if not self.is_unsure:
            return
        self._lacking.add(self._node_id)
        if self._mode == "segments":
            message = 'the node is of a version that has no segments to send: use catch_up="auto" or "stream"'
            self._streams.fail(ProtocolError(message))

    @property
    def is_unsure(self) -> bool:
        """Whether the node may be one that knows no segments."""
        return bool(self._asked_checkpoints or self._asked_parts) and not self._is_known

    # Partitions

    def takes(self, partition: ConsumedPartition) -> bool:
        """Begins to catch up by segments. Returns False if the partition should ask for its stream."""
        high_seq = max(self._high_seqs.get(partition.id, 0), partition.high_seq)
        is_meant = partition.id in self._given or is_far_behind(self._subscription, partition, high_seq)
        if self._mode == "stream" or partition.position is None or not is_meant:
            return False
        now = self._streams.now
        if self._tries[partition.id] >= TRIES_MAX:  # each connection has ended before a block has come
            del self._tries[partition.id]
            self._stream_until[partition.id] = now + STREAM_SECONDS
        if self._node_id in self._lacking or now < self._stream_until.get(partition.id, now):
            return False
        partition.copy("it catches up by segments", now)
        self._queued[partition.id] = partition
        return True

    def abandon(self, partition: ConsumedPartition) -> None:
        """Forgets a partition, which asks for its stream."""
        self._queued.pop(partition.id, None)
        copy = self._running.pop(partition.id, None)
        if copy is not None:
            self._release(copy)
            copy.end()

    def _release(self, copy: PartitionCatchUp) -> None:
        """Notes the copy's checkpoint as one to release, unless it is another program's."""
        if copy.told is not None and copy.told is not self._given.get(copy.partition.id):
            self._releases.append(SegmentRelease(copy.told.id, copy.damaged))

    def _to_stream(self, copy: PartitionCatchUp, reason: str) -> None:
        """Has the stream asked for, and no segments for a while."""
        self._stream_until[copy.partition.id] = self._streams.now + STREAM_SECONDS
        self._tries.pop(copy.partition.id, None)
        self._streams.wait(copy.partition, reason, self._streams.now)  # which abandons it here

    def _again(self, copy: PartitionCatchUp, reason: str) -> None:
        """Asks for another checkpoint; for the stream after TRIES_MAX without a block in between."""
        partition = copy.partition
        if self._tries[partition.id] >= TRIES_MAX:
            self._to_stream(copy, reason)
            return
        self.abandon(partition)
        self._queued[partition.id] = partition

    def _found_damage(self, copy: PartitionCatchUp, segment_id: bytes, reason: str) -> None:
        """Tells the node of wrong bytes when the checkpoint is released, and asks for another one.

        That of another program is not released. If the bytes are wrong again, the release of the next one tells.
        """
        copy.note_damaged(segment_id)
        self._again(copy, reason)
        self._given.pop(copy.partition.id, None)

    # Frames out

    def requests(self, feed_id: bytes) -> list[bytes]:
        """Returns the frames that are due: checkpoints to release and to take, and parts of segments."""
        out = []
        for release in self._releases:
            id = self._streams.new_id()
            self._released.add(id)
            out.append(encode_json(Opcode.SEGMENT_RELEASE, release.to_json(), id))
        self._releases.clear()
        while self._queued and len(self._running) < PARTITIONS_AT_ONCE:
            out += self._begin_copy(self._queued.popitem(last=False)[1], feed_id)
        if self._running:
            self._ask_parts(out)
        if self._renewals is not None:
            out += self._renewals.request(self._streams.now, self._streams.new_id)
        return out

    def _begin_copy(self, partition: ConsumedPartition, feed_id: bytes) -> list[bytes]:
        """Begins with the checkpoint that was given, or asks for one."""
        self._tries[partition.id] += 1
        copy = self._running[partition.id] = PartitionCatchUp(partition)
        given = self._given.get(partition.id)
        if given is not None:
            plan = plan_segments("segments", partition, given, exact_end=self._subscription.exact_end)
            if plan.files:
                self._begin_segments(copy, given, plan)
                return []
            del self._given[partition.id]
        id = self._streams.new_id()
        self._asked_checkpoints[id] = copy
        request = CheckpointRequest(feed_id, partition.id, checkpoint_level(self._subscription.visibility))
        return [encode_json(Opcode.SEGMENT_CHECKPOINT, request.to_json(), id)]

    def _ask_parts(self, out: list[bytes]) -> None:
        """Appends requests for parts, in turns of the partitions, up to the window.

        A partition that has nothing to hand out asks even so: the window may be full of what comes behind.
        """
        held_bytes = sum(copy.held_bytes for copy in self._running.values())
        idle = 0
        while idle < len(self._running) and len(self._asked_parts) < FETCHES_MAX:
            copy = next(iter(self._running.values()))
            self._running.move_to_end(copy.partition.id)
            may_ask = copy.told is not None and (held_bytes < self._window_bytes or not copy.has_steps)
            range = copy.next_range(RANGE_BYTES) if may_ask else None
            idle = idle + 1 if range is None else 0
            if range is not None:
                held_bytes += range.nbytes
                out += self._fetches(copy, range)

    def _fetches(self, copy: PartitionCatchUp, range: FetchedRange) -> Iterable[bytes]:
        assert copy.told is not None, "parts are of a checkpoint"
        for number, (offset, nbytes) in enumerate(range.parts):
            id = self._streams.new_id()
            self._asked_parts[id] = copy, range, number
            yield SegmentFetch(copy.told.id, range.segment_id, offset, nbytes).encode(id)

    # Frames in

    def receive(self, frame: Frame) -> None:
        """Takes an answer. Frames of other ids are ignored. Raises ProtocolError."""
        asked = self._asked_parts.pop(frame.id, None)
        if asked is not None:
            self._is_known = True
            self._on_data(*asked, frame)
            return
        if self._renewals is not None and self._renewals.takes(frame.id, is_kept=True):
            return
        copy = self._asked_checkpoints.pop(frame.id, None)
        if copy is not None:
            self._is_known = True
            if not copy.is_over:
                self._on_checkpoint(copy, frame)
        self._released.discard(frame.id)

    def refused(self, id: int, error: TailraceError) -> bool:
        """Takes an ERROR. Returns False if it is not an answer to a request of this object."""
        if id in self._released:
            self._released.discard(id)
            return True
        if self._renewals is not None and self._renewals.takes(id, is_kept=not isinstance(error, UnknownCheckpoint)):
            return True
        copy = self._asked_checkpoints.pop(id, None)
        if copy is not None:
            self._is_known = True
        elif id in self._asked_parts:
            self._is_known = True
            copy, *_ = self._asked_parts.pop(id)
        else:
            return False
        if copy.is_over:
            return True
        if isinstance(error, UnknownCheckpoint):
            self._given.pop(copy.partition.id, None)
            self._again(copy, str(error))
        else:
            self._to_stream(copy, f"no segments: {error}")
        return True

    def _on_checkpoint(self, copy: PartitionCatchUp, frame: Frame) -> None:
        told = PartitionCheckpoint.from_json(decode_json(frame.body, "RESULT"))
        if told.partition != copy.partition.id:
            wanted = copy.partition.id
            raise ProtocolError(f"the checkpoint of partition {told.partition} came, of {wanted} was asked for")
        plan = plan_segments(self._mode, copy.partition, told, exact_end=self._subscription.exact_end)
        if plan.files:
            self._begin_segments(copy, told, plan)
        else:
            self._releases.append(SegmentRelease(told.id))
            self._to_stream(copy, f"no segments: {plan.reason}")

    def _begin_segments(self, copy: PartitionCatchUp, told: PartitionCheckpoint, plan: SegmentPlan) -> None:
        partition = copy.partition
        assert partition.position is not None, "is_far_behind was asked before"
        self._streams.agree(partition, StreamOk(partition.id, partition.position.seq, told.log, told.seq))
        end_seq = partition.end_seq if self._subscription.exact_end else None
        stop_seq = SEQ_MAX if end_seq is None else end_seq
        copy.begin(told, snapshots_of(plan.files, partition.promised_seq), stop_seq)

    def _on_data(self, copy: PartitionCatchUp, range: FetchedRange, part: int, frame: Frame) -> None:
        if copy.is_over:
            return
        offset, nbytes = range.parts[part]
        range.take(part, SegmentFetch(b"", range.segment_id, offset, nbytes).decode_answer(frame))
        if range.data is None:
            return
        if not isinstance(range, BlockRange):
            try:
                copy.took_footer(range)
            except BadSegment as error:
                self._found_damage(copy, range.segment_id, str(error))

    # Events

    def hand_out(self) -> bool:
        """Emits the next event that has come. Returns False if none has."""
        for _ in range(len(self._running)):
            id, copy = next(iter(self._running.items()))
            if self._hand_out(copy):
                return True
            if id in self._running:
                self._running.move_to_end(id)
        return False

    def _hand_out(self, copy: PartitionCatchUp) -> bool:
        """Emits the next event of a partition. Returns False if none has come."""
        events: list[Queued] = []
        while not events and (step := copy.next_step) is not None:
            try:
                events = self._take(copy, step)
            except (BadSegment, BadBlock) as error:
                if isinstance(step, BlockRange):
                    self._found_damage(copy, step.segment_id, str(error))
                else:
                    self._again(copy, str(error))
        self._streams.emit(events)
        if copy.is_done:
            self._to_stream(copy, "its segments were read")
        return bool(events)

    def _take(self, copy: PartitionCatchUp, step: CopyStep) -> list[Queued]:
        """Takes a step, or the next block of it, and returns its events. Raises BadSegment, BadBlock."""
        if isinstance(step, BlockRange):
            block = step.next_block()
            if step.is_done:
                copy.pass_step()
            self._tries.pop(copy.partition.id, None)
            return self._block(copy, block)
        copy.pass_step()
        return self._begin(copy, step.last_seq) if isinstance(step, SnapshotBegin) else [self._end(copy)]

    def _begin(self, copy: PartitionCatchUp, last_seq: int) -> list[Queued]:
        """Begins a snapshot. With a filter its first matching block announces it, as in a stream.

        A consumer that begins at 0 has to learn the purge seq before it stands anywhere.
        """
        assert copy.told is not None
        assert copy.partition.position is not None
        copy.enter_snapshot(last_seq)
        at_begin = copy.partition.position.seq == 0 and copy.told.purge_seq > 0
        return [self._announce(copy)] if at_begin or not self._selects else []

    def _announce(self, copy: PartitionCatchUp) -> Queued:
        partition, told = copy.partition, copy.told
        assert told is not None
        assert partition.position is not None
        copy.note_announced()
        # Never complete: a publish may have an end in a segment, and rows that were superseded may be missing.
        after_seq, last_seq = partition.position.seq, copy.snapshot_last
        message = SnapshotStartMessage(partition.id, False, partition.branch, after_seq, last_seq, told.purge_seq)
        position = partition.start_snapshot(message)
        event = SnapshotStart(partition.id, after_seq + 1, last_seq, position, False, told.purge_seq)
        return event, partition.id, position, 0

    def _block(self, copy: PartitionCatchUp, block: Block) -> list[Queued]:
        partition, found = copy.partition, self._filtered(block)
        if found is None:
            return []
        assert partition.position is not None
        last_seq = found.header.last_seq
        branch = partition.log.branch_at(last_seq)
        mutations = Mutations.above(found, partition.position.seq, branch=branch, keys_only=self._keys_only)
        if mutations is None:
            return []
        events = [] if copy.is_announced else [self._announce(copy)]
        events.append((mutations, partition.id, partition.advance(last_seq, found), 0))
        return events

    def _filtered(self, block: Block) -> Block | None:
        if not self._selects:
            return block
        from tailrace.block.filtering import filter_block  # needs numpy, which takes 0.1 s to load

        return filter_block(block, self._rows_filter)

    def _end(self, copy: PartitionCatchUp) -> Queued:
        partition, last_seq = copy.partition, copy.snapshot_last
        if copy.is_announced:
            first_seq, position = partition.snapshot_after + 1, partition.end_snapshot(last_seq)
        else:
            after_seq, position = partition.skip_to(last_seq)
            first_seq = after_seq + 1
        return SnapshotEnd(partition.id, first_seq, last_seq, position), partition.id, position, 0
