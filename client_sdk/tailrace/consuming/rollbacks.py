"""The rollbacks of a consumer's partitions: the requests to the node, and the events for the program. Sans-IO.

    begin ── Rollback ──handled──┬── GET / GOT ── refetched Mutations ──handled──┐ while there are keys
                                 └───────────────────────────────────────────────┘
          ── which seq does the node show? ── the rest of the Mutations ──handled── the stream is asked for again

Each step waits until the program has handled the events of the last one. This bounds what waits, and an index stores
everything in order. The position is S = A = R with B unknown until the last step, which sets B = H and changes the ring
(S is the position's ``seq``, A its ``snapshot_first``, B its ``snapshot_last``; R is the seq to go back to, and H the
seq that the node shows). So a consumer that is interrupted in between knows from its position that it has to begin
again. All requests use the connection that the stream will use.
"""

from __future__ import annotations

import collections
import logging
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tailrace.consuming.events import Event, Mutations, ReplicaEvent, Rollback
from tailrace.consuming.partition import ConsumedPartition
from tailrace.consuming.resume import ResumeAction, ResumeDecision
from tailrace.consuming.ring import RingChange
from tailrace.errors import StreamEnded
from tailrace.model import EndReason
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, FailoverLog
from tailrace.model.position import Position
from tailrace.wire.messages import Get, Got
from tailrace.wire.stream_messages import StreamOk, StreamRequest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from tailrace.consuming.refetch import Refetch
    from tailrace.consuming.subscription import Subscription
    from tailrace.errors import DataGone, TailraceError

logger = logging.getLogger("tailrace.client")

# An event that waits to be asked for (bytes: the cookie of a barrier that has come back; DataGone: an error that the
# program gets in this place, and that ends its partition alone), its partition, the position that it leads to, and the
# bytes that it frees. A plain tuple, since there is one for each event.
Given: TypeAlias = "Event | ReplicaEvent | DataGone | bytes"
Queued: TypeAlias = "tuple[Given, int, Position | None, int]"

# The number of partitions whose look-up is under way, or whose answer is not handled: bounds the memory.
REFETCHES_MAX = 8


class Streams(Protocol):
    """The streams of the connection, as far as rollbacks use them."""

    @property
    def now(self) -> float: ...
    @property
    def node_state(self) -> str: ...
    def register(self, partition: ConsumedPartition) -> int: ...
    def close(self, partition: ConsumedPartition) -> None: ...
    def forget(self, partition: ConsumedPartition) -> None: ...
    def wait(self, partition: ConsumedPartition, reason: str, retry_at: float) -> None: ...
    def try_again(self, partition: ConsumedPartition, reason: str) -> None: ...
    def emit(self, queued: Iterable[Queued]) -> None: ...
    def fail(self, error: TailraceError) -> NoReturn: ...


class PartitionRollback:
    """The rollback of one partition that is under way. Only `Rollbacks` sets its fields."""

    def __init__(self, partition: ConsumedPartition, awaited: Event, refetch: Refetch | None) -> None:
        self.partition = partition
        # The event that the program has to handle before the next step; None while the node is asked.
        self.awaited: Event | None = awaited
        # The keys to look up; None if no key is, or if the index has gone back by itself.
        self.refetch = refetch
        self.keys: list[bytes] = []  # of the last GET


class Rollbacks:
    """All rollbacks that are under way on a connection."""

    def __init__(self, subscription: Subscription, streams: Streams) -> None:
        self._subscription = subscription
        self._on_rollback = subscription.on_rollback
        self._by_index = subscription.by_index
        self._streams = streams
        self._under_way: dict[int, PartitionRollback] = {}
        # Those that wait for their next request, the oldest first.
        self._to_ask: collections.OrderedDict[int, PartitionRollback] = collections.OrderedDict()
        # The partitions whose request is under way, or whose answer the program has not handled. Invariant: at most
        # REFETCHES_MAX, and none of them is in ``_to_ask``.
        self._asked: set[int] = set()
        self._ring_changes: dict[int, RingChange] = {}  # by the last refetched events, for an index to store

    @property
    def under_way(self) -> bool:
        """True while a partition is rolled back."""
        return bool(self._under_way)

    @property
    def to_ask(self) -> bool:
        """True if `requests` may have a request."""
        return bool(self._to_ask)

    def take_ring_change(self, partition: int) -> RingChange | None:
        """Returns, once, how the last refetched event has changed the ring of a partition; None if it did not."""
        return self._ring_changes.pop(partition, None)

    def connection_lost(self) -> None:
        """Drops all rollbacks: their partitions ask for their streams, and begin again."""
        self._under_way.clear()
        self._to_ask.clear()
        self._asked.clear()

    def abandon(self, partition: ConsumedPartition) -> None:
        """Drops the rollback of a partition, which asks for its stream."""
        self._under_way.pop(partition.id, None)
        self._to_ask.pop(partition.id, None)
        self._asked.discard(partition.id)

    # Steps

    def begin(self, partition: ConsumedPartition, decision: ResumeDecision, log: FailoverLog, why: str) -> Queued:
        """Takes the first step, and returns its event. Raises StreamEnded if ``on_rollback`` is "stop"."""
        action, seq = decision
        if self._on_rollback == "stop":
            message = f"partition {partition.id} would have to be rolled back to seq {seq} ({why})"
            self._streams.fail(StreamEnded(message, reason=EndReason.ROLLED_BACK))
        if self._on_rollback == "restart" or (action is ResumeAction.UNCOVERED and not self._by_index):
            action, seq = ResumeAction.CLEAR, 0
        keys: list[bytes] | None = None
        refetch, last = None, seq
        if action is ResumeAction.UNCOVERED:
            last = SNAPSHOT_LAST_UNKNOWN
        elif action is not ResumeAction.CLEAR:
            keys = partition.ring.keys_above(seq)
            if keys:
                from tailrace.consuming.refetch import Refetch  # most programs meet no rollback

                refetch = Refetch(partition.id, seq, keys, keys_only=self._subscription.filter.keys_only)
                last = SNAPSHOT_LAST_UNKNOWN
        event = Rollback(partition.id, seq, None if keys is None else tuple(keys))
        told = (partition.id, self._subscription.feed, seq, "all" if keys is None else len(keys), why)
        logger.info("partition %s of feed %s goes back to seq %s, and %s of its keys are read again: %s", *told)
        position = partition.begin_rollback(seq, last, log, f"rolled back: {why}", self._streams.now)
        self._under_way[partition.id] = PartitionRollback(partition, event, refetch)
        return event, partition.id, position, 0

    def begin_anew(self, partition: ConsumedPartition, why: str) -> Queued:
        """Has a partition begin at seq 0, because rows that it would get next are gone. Returns the event."""
        if partition.position is None:  # it was to begin at a time
            partition.reset_to(Position.at(FailoverLog(), 0))
        event = Rollback(partition.id, 0, None)
        logger.info("partition %s of feed %s begins anew: %s", partition.id, self._subscription.feed, why)
        position = partition.begin_rollback(0, 0, partition.log, why, self._streams.now)
        self._under_way[partition.id] = PartitionRollback(partition, event, None)
        return event, partition.id, position, 0

    def handled(self, partition: int, event: Given) -> None:
        """Takes the next step of a partition, if it waited until the program had handled ``event``."""
        rollback = self._under_way.get(partition)
        if rollback is not None and rollback.awaited is event and not (self._by_index and isinstance(event, Rollback)):
            self._go_on(rollback)

    def settle(self, event: Rollback, point: int | None) -> Position | None:
        """Takes the next step after an index has handled a Rollback.

        Args:
            event: The Rollback.
            point: The seq that the index has gone back to; None if it cannot go back: its keys are refetched.

        Returns:
            The position; None if the connection was lost meanwhile, and the rollback begins again.
        """
        rollback = self._under_way.get(event.partition)
        if rollback is None or rollback.awaited is not event:
            return None
        assert point is not None or event.keys is not None, "an index that cannot go back has to be cleared"
        partition = rollback.partition
        if point is not None:
            rollback.refetch = None
            partition.roll_back_to(point, point, partition.log, RingChange(0, point))
        self._go_on(rollback)
        return partition.position

    def _go_on(self, rollback: PartitionRollback) -> None:
        rollback.awaited = None
        partition, refetch = rollback.partition, rollback.refetch
        if refetch is not None and refetch.as_of is None:
            self._asked.discard(partition.id)
            self._to_ask[partition.id] = rollback
        elif refetch is not None and not refetch.rest_is_delivered:
            self._deliver_rest(rollback, refetch)
        else:
            self._streams.wait(partition, partition.reason, self._streams.now)

    def _deliver_rest(self, rollback: PartitionRollback, refetch: Refetch) -> None:
        partition = rollback.partition
        events = refetch.rest()
        position = partition.position
        if refetch.rest_is_delivered:
            assert refetch.as_of is not None, "deletions have a seq"
            change = partition.ring.replacing(refetch.seq, refetch.as_of, refetch.keys)
            self._ring_changes[partition.id] = change
            position = partition.roll_back_to(refetch.seq, refetch.as_of, partition.log, change)
        self._deliver(rollback, events, position)

    def _deliver(self, rollback: PartitionRollback, events: list[Mutations], position: Position | None) -> None:
        """Emits ``events``. The last one leads to ``position``, and the next step waits until it is handled."""
        id = rollback.partition.id
        rollback.awaited = events[-1]
        self._streams.emit((event, id, None, 0) for event in events[:-1])
        self._streams.emit([(events[-1], id, position, 0)])

    # Frames

    def requests(self, feed_id: bytes) -> list[bytes]:
        """Returns the frames of the next requests: look-ups, and questions which seq the node shows."""
        out = []
        level, node_state, filter = self._subscription.visibility, self._streams.node_state, self._subscription.filter
        while self._to_ask and len(self._asked) < REFETCHES_MAX:
            id, rollback = self._to_ask.popitem(last=False)
            assert rollback.refetch is not None, "only a rollback with keys asks"
            self._asked.add(id)
            rollback.keys = keys = rollback.refetch.next_keys()
            request_id = self._streams.register(rollback.partition)
            if keys:
                rollback.partition.look_up(request_id)
                out.append(Get(feed_id, level, keys, int(node_state == "follower")).encode(request_id))
            else:
                rollback.partition.measure(request_id)
                ask = (feed_id, id, FailoverLog(), None, 0, 0, None, None, level, node_state, filter)
                out.append(StreamRequest(*ask).encode(request_id))
        return out

    def got(self, partition: ConsumedPartition, body: memoryview) -> None:
        """Takes the answer to a look-up."""
        rollback = self._under_way[partition.id]
        assert rollback.refetch is not None, "only a rollback with keys asks"
        self._streams.forget(partition)
        events = rollback.refetch.found(Got.decode(body, rollback.keys), partition.log)
        if events:
            self._deliver(rollback, events, None)
        else:
            self._go_on(rollback)

    def measured(self, partition: ConsumedPartition, answer: StreamOk) -> None:
        """Takes the answer to the question which seq the node shows."""
        rollback = self._under_way[partition.id]
        assert rollback.refetch is not None, "only a rollback with keys asks"
        self._streams.close(partition)
        if answer.log != partition.log:
            self._streams.try_again(partition, "the partition's history has changed")
            return
        rollback.refetch.measured(answer.seq)
        self._go_on(rollback)
