"""A consumer's partitions that are rolled back: what is asked of the node, and what the program is given. Sans-IO.

    begin ── Rollback ──handled──┬── GET / GOT ── refetched Mutations ──handled──┐ as long as there are keys
                                 └───────────────────────────────────────────────┘
          ── how far does the node show? ── the rest of the Mutations ──handled── the stream is asked for again

Each step waits until the program has handled what the last one gave, so what waits is bounded, and what an index stores
keeps its order. S = A = R and B = unknown from the first step to the last, which sets B = H and the ring: a consumer
that is interrupted in between is told so by its own position, and begins at the first step. Everything is asked on the
connection that the stream will be on.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Protocol

from tailrace.consuming.events import Event, Mutations, ReplicaEvent, Rollback
from tailrace.consuming.partition import ConsumedPartition, State
from tailrace.consuming.refetch import Refetch
from tailrace.consuming.resume import Decision, Move
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

    from tailrace.consuming.wanted import Wanted
    from tailrace.errors import TailraceError

# An event that waits to be asked for (bytes: the cookie of a barrier that has come back), its partition, the position
# that it leads to, and the bytes that it frees. A plain tuple, since there is one for each event.
Queued = tuple[Event | ReplicaEvent | bytes, int, Position | None, int]

# So many partitions have a look-up under way, or its answer unhandled: bounds what is in memory.
REFETCHES_MAX = 8


class Streams(Protocol):
    """What is needed of the streams of the connection."""

    @property
    def now(self) -> float: ...
    @property
    def node_state(self) -> str: ...
    def new_id(self, partition: ConsumedPartition) -> int: ...
    def close(self, partition: ConsumedPartition) -> None: ...
    def stopped(self, partition: ConsumedPartition) -> None: ...
    def wait(self, partition: ConsumedPartition, reason: str, retry_at: float) -> None: ...
    def try_again(self, partition: ConsumedPartition, reason: str) -> None: ...
    def emit(self, queued: Iterable[Queued]) -> None: ...
    def fail(self, error: TailraceError) -> NoReturn: ...


class Rollbacks:
    """See the module. ``changes`` has how rings have changed with the last refetched events, for an index to store."""

    def __init__(self, wanted: Wanted, streams: Streams) -> None:
        self._wanted = wanted
        self._on_rollback = wanted.on_rollback
        self._by_index = wanted.by_index
        self._streams = streams
        self._under_way: dict[int, ConsumedPartition] = {}
        self._asking: dict[int, list[bytes]] = {}  # the keys of the GET that is under way, or whose answer is unhandled
        self._to_ask: collections.OrderedDict[int, ConsumedPartition] = collections.OrderedDict()
        self.changes: dict[int, RingChange] = {}

    @property
    def under_way(self) -> bool:
        """Some partition is being rolled back."""
        return bool(self._under_way)

    @property
    def to_ask(self) -> bool:
        """`requests` may have something."""
        return bool(self._to_ask)

    def connection_lost(self) -> None:
        """All that was asked has no answer: those partitions ask for their streams, and begin again."""
        for partition in self._under_way.values():
            partition.awaited = partition.refetch = None
        self._under_way.clear()
        self._asking.clear()
        self._to_ask.clear()

    def abandon(self, partition: ConsumedPartition) -> None:
        """The partition asks for its stream, and begins again."""
        partition.awaited = partition.refetch = None
        self._under_way.pop(partition.id, None)
        self._asking.pop(partition.id, None)
        self._to_ask.pop(partition.id, None)

    # Steps

    def begin(self, partition: ConsumedPartition, decision: Decision, log: FailoverLog, why: str) -> Queued:
        """The first step. Raises StreamEnded where the program does not want any."""
        move, seq = decision
        if self._on_rollback == "stop":
            message = f"partition {partition.id} would have to be rolled back to seq {seq} ({why})"
            self._streams.fail(StreamEnded(message, reason=EndReason.ROLLED_BACK))
        if self._on_rollback == "restart" or (move is Move.UNCOVERED and not self._by_index):
            move, seq = Move.CLEAR, 0
        event, last = self._first_event(partition, move, seq)
        position = partition.goes_back(seq, last, log)
        partition.state, partition.awaited = State.ROLLING_BACK, event
        partition.reason, partition.since = f"rolled back: {why}", self._streams.now
        self._under_way[partition.id] = partition
        return event, partition.id, position, 0

    def _first_event(self, partition: ConsumedPartition, move: Move, seq: int) -> tuple[Rollback, int]:
        """The event, and the B that goes with it."""
        if move is Move.CLEAR:
            partition.ring.clear()
            return Rollback(partition.id, 0, None), 0
        if move is Move.UNCOVERED:
            return Rollback(partition.id, seq, None), SNAPSHOT_LAST_UNKNOWN
        keys = partition.ring.keys_above(seq)
        if not keys:
            return Rollback(partition.id, seq, ()), seq
        partition.refetch = Refetch(partition.id, seq, keys, keys_only=self._wanted.filter.keys_only)
        return Rollback(partition.id, seq, tuple(keys)), SNAPSHOT_LAST_UNKNOWN

    def handled(self, partition: ConsumedPartition, event: Event | ReplicaEvent | bytes) -> None:
        """The program has handled ``event``: the next step is due, where it has waited for that."""
        if partition.awaited is event and not (self._by_index and isinstance(event, Rollback)):
            self._go_on(partition)

    def settle(self, partition: ConsumedPartition, event: Rollback, point: int | None) -> Position | None:
        """The index has gone back to ``point``, and the next step is due; None: it cannot, and keys are refetched."""
        if partition.awaited is not event:
            return None  # the connection was lost meanwhile: it will be asked again
        assert point is not None or event.keys is not None, "an index that cannot go back was to be cleared"
        if point is not None:
            partition.refetch = None
            if point:
                partition.ring.apply(RingChange(0, point))
            else:
                partition.ring.clear()
            partition.goes_back(point, point, partition.log)
        self._go_on(partition)
        return partition.position

    def _go_on(self, partition: ConsumedPartition) -> None:
        partition.awaited = None
        refetch = partition.refetch
        if refetch is not None and refetch.as_of is None:
            self._to_ask[partition.id] = partition
        elif refetch is not None and not refetch.rest_is_delivered:
            self._deliver_rest(partition, refetch)
        else:
            self._streams.wait(partition, partition.reason, self._streams.now)

    def _deliver_rest(self, partition: ConsumedPartition, refetch: Refetch) -> None:
        events = refetch.rest()
        position = partition.position
        if refetch.rest_is_delivered:
            assert refetch.as_of is not None, "deletions have a seq"
            change = partition.ring.replacing(refetch.seq, refetch.as_of, refetch.keys)
            partition.ring.apply(change)
            self.changes[partition.id] = change
            position = partition.goes_back(refetch.seq, refetch.as_of, partition.log)
        self._deliver(partition, events, position)

    def _deliver(self, partition: ConsumedPartition, events: list[Mutations], position: Position | None) -> None:
        """Hands out ``events``; the last one leads to ``position``, and has to be handled before the next step."""
        partition.awaited = events[-1]
        self._streams.emit((event, partition.id, None, 0) for event in events[:-1])
        self._streams.emit([(events[-1], partition.id, position, 0)])

    # Frames

    def requests(self, feed_id: bytes) -> list[bytes]:
        """The look-ups, and the questions how far the node shows, whose turn it is."""
        out = []
        level, node_state, wanted_rows = self._wanted.visibility, self._streams.node_state, self._wanted.filter
        while self._to_ask and len(self._asking.keys() - self._to_ask.keys()) < REFETCHES_MAX:
            id, partition = self._to_ask.popitem(last=False)
            refetch = partition.refetch
            assert refetch is not None, "only what is refetched is asked for"
            self._asking[id] = keys = refetch.next_keys()
            request_id = self._streams.new_id(partition)
            if keys:
                partition.state = State.REFETCHING
                out.append(Get(feed_id, level, keys, int(node_state == "follower")).encode(request_id))
            else:
                partition.state = State.MEASURING
                ask = (feed_id, id, FailoverLog(), None, 0, 0, None, None, level, node_state, wanted_rows)
                out.append(StreamRequest(*ask).encode(request_id))
        return out

    def got(self, partition: ConsumedPartition, body: memoryview) -> None:
        """The answer to a look-up."""
        refetch = partition.refetch
        assert refetch is not None, "only what is refetched is asked for"
        self._streams.stopped(partition)
        items = Got.decode(body, self._asking[partition.id])
        events = refetch.found(items, partition.log)
        if events:
            self._deliver(partition, events, None)
        else:
            self._go_on(partition)

    def measured(self, partition: ConsumedPartition, answer: StreamOk) -> None:
        """How far the node shows what was looked up."""
        refetch = partition.refetch
        assert refetch is not None, "only what is refetched is measured"
        self._streams.close(partition)
        if answer.log != partition.log:
            self._streams.try_again(partition, "the partition's history has changed")
            return
        refetch.measured(answer.seq)
        self._go_on(partition)
