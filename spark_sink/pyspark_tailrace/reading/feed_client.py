"""Asks a node about a feed, for the driver, on a connection that stays open."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark_tailrace.options import context_of
from pyspark_tailrace.reading.offsets import NOTHING, FeedState, PartitionState
from pyspark_tailrace.reading.options import EARLIEST, LATEST, ReadOptions
from tailrace import blocking
from tailrace.consuming.catch_up_rules import checkpoint_level
from tailrace.consuming.events import Mutations, SnapshotEnd, SnapshotStart
from tailrace.consuming.explain import request_of
from tailrace.consuming.session import Subscription
from tailrace.errors import DataGone, TailraceError, UnknownFeed
from tailrace.model import Level
from tailrace.model.position import Position, Positions
from tailrace.requests.replies import failover_log
from tailrace.wire.opcodes import Opcode
from tailrace.wire.progress import Progress
from tailrace.wire.segment_messages import ASKER_BYTES, CheckpointRequest, PartitionCheckpoint
from tailrace.wire.stream_messages import ResumeAnswer

# Spark asks for news every 10 ms, and the description of thousands of partitions takes longer. Requests take at most
# this share of the time; in between the last answer is used.
ASKING_PART = 0.1
# The names that nodes show: a query without a name of its own, and its tasks.
SOURCE, TASK = "source", "spark task"
# Progress that has not changed is told again after so many seconds: the connection may be a new one.
PROGRESS_SECONDS = 5.0
# A checkpoint only saves time, so the driver does not wait for one for longer.
CHECKPOINT_SECONDS = 2.0


class NextSnapshot(NamedTuple):
    """The next snapshot of a partition: its last seq, and the mean bytes of its first rows."""

    snapshot_last: int
    row_bytes: float


# The bytes in flight to a task. They wait on the node or in the system: a task reads only what it takes. It grants a
# quarter at once, and each grant wakes the node.
WINDOW_BYTES = 16 * 1024 * 1024


def open_stream(options: ReadOptions, wanted: Subscription) -> blocking.Stream:
    """Returns a consumer, not connected yet. It is the only connection of a task."""
    return _client(options, TASK).stream(wanted, WINDOW_BYTES)


def _client(options: ReadOptions, name: str) -> blocking.Client:
    return blocking.connect(
        options.url,
        token=options.token,
        tls=context_of(options.url, options.tls),
        name=name,
        connect_timeout=options.retry_for_s,
        retry_for=options.retry_for_s,
    )


class FeedClient:
    """Reads a node's state of a feed. It connects on first use, and raises the errors of ``tailrace.blocking``."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client: blocking.Client | None = None
        self._feed: FeedState | None = None
        self._good_until = 0.0
        self._told: Mapping[int, int] = {}
        self._tell_at = 0.0

    def close(self) -> None:
        """Ends the connection."""
        if self._client is not None:
            self._client.close()
            self._client, self._tell_at = None, 0.0

    def confirmed_feed(self) -> FeedState:
        """Returns the feed's state with everything that was acknowledged before the call.

        A majority has to confirm the leader of a set: one that was deposed does not know what its successor has
        acknowledged. Raises UnknownFeed, Unreachable.
        """
        client, level = self._connected(), self._options.level.name.lower()
        asked = {"name": self._options.feed, "leader": True, "level": level}
        value = client.call(Opcode.PARTITIONS, asked, client.deadline(None))
        # All mutations up to ``high_seq`` had come to the level before the node answered.
        return self._state(value, {partition["id"]: partition["high_seq"] for partition in value["partitions"]})

    def feed(self, *, fresh: bool = True) -> FeedState:
        """Returns the feed's state; unless ``fresh``, a recent one will do. Raises UnknownFeed, Unreachable."""
        begin = time.monotonic()
        if self._feed is not None and not fresh and begin < self._good_until:
            return self._feed
        client = self._connected()
        value = client.call(Opcode.PARTITIONS, {"name": self._options.feed}, client.deadline(None))
        feed_id = bytes.fromhex(value["feed"]["feed_id"])
        shown = {}
        for partition in value["partitions"]:
            level, id = self._options.level, partition["id"]
            shown[id] = partition["high_seq" if level is Level.MEMORY else "durable_seq"]
            if level is Level.QUORUM:
                shown[id] = self._answer(feed_id, id).visible_seq
        self._feed = self._state(value, shown)
        end = time.monotonic()
        self._good_until = end + (end - begin) / ASKING_PART
        return self._feed

    def _state(self, value: dict[str, Any], shown: Mapping[int, int]) -> FeedState:
        """Returns the state that a partition map tells, if each partition shows its seq of ``shown``."""
        partitions = {}
        for partition in value["partitions"]:
            id = partition["id"]
            partitions[id] = PartitionState(
                failover_log(value, id),
                partition["high_seq"],
                shown[id],
                # Older nodes do not tell of their segments.
                partition.get("flushed_seq", 0),
                partition.get("trim_seq"),
                partition.get("segment_bytes", 0),
            )
        is_history = value["feed"]["retention"] == "history"
        feed_id = bytes.fromhex(value["feed"]["feed_id"])
        return FeedState(self._connected().cluster_id, feed_id, is_history, partitions)

    def tell_progress(self, feed: FeedState, seqs: Mapping[int, int]) -> None:
        """Tells the node up to which seqs the query has handled the feed, for its lag. A failure ends nothing."""
        now = time.monotonic()
        if seqs == self._told and now < self._tell_at:
            return
        client = self._connected()
        if not client.takes_progress:
            return
        told = Progress(feed.feed_id, self._options.level, {id: seqs.get(id, 0) for id in feed.partitions})
        with contextlib.suppress(TailraceError):  # the next request finds the same error
            client.call(Opcode.PROGRESS, told.to_json(), client.deadline(CHECKPOINT_SECONDS))
        end = time.monotonic()
        self._told, self._tell_at = dict(seqs), end + max(PROGRESS_SECONDS, (end - now) / ASKING_PART)

    def kept_since(self, feed: FeedState) -> dict[int, int]:
        """Returns the seq up to which each partition of a history had been trimmed at the time of ``feed``."""
        if not feed.is_history:
            return dict.fromkeys(feed.partitions, 0)
        told = ((id, partition.trim_seq) for id, partition in feed.partitions.items())
        return {id: self._trim_seq(feed, id) if seq is None else seq for id, seq in told}

    def checkpoint(self, feed: FeedState, partition: int) -> PartitionCheckpoint | None:
        """Returns a checkpoint of a partition; None if the node gives none now.

        The node keeps its segments for the tasks, for a minute after the last one has read.
        """
        client, level = self._connected(), checkpoint_level(self._options.level)
        asker = secrets.token_bytes(ASKER_BYTES)  # of this call: one that is sent again replaces its lost answer
        request = CheckpointRequest(feed.feed_id, partition, level, asker=asker).to_json()
        try:
            told = PartitionCheckpoint.from_json(
                client.call(Opcode.SEGMENT_CHECKPOINT, request, client.deadline(CHECKPOINT_SECONDS))
            )
        except TailraceError:  # the tasks ask for their own, or find the same error
            return None
        return told if (told.feed_id, told.partition) == (feed.feed_id, partition) else None

    def starting(self, feed: FeedState) -> Positions:
        """Returns the positions that ``startingOffsets`` names.

        Raises BadPosition for positions of another feed, and DataGone if a time or positions are before the first
        mutation that is kept.
        """
        start = self._options.start
        if isinstance(start, int):
            return self.since(feed, start, strict=self._options.fail_on_data_loss)
        if start == LATEST:
            return feed.shown
        if start == EARLIEST:
            trimmed = self.kept_since(feed)
            kept = {id: Position.at(feed.partitions[id].log, seq) for id, seq in trimmed.items() if seq}
            return Positions(feed.cluster_id, feed.feed_id, kept)
        positions = Positions.parse(start)
        check_feed(positions, feed)
        return positions

    def ending(self, feed: FeedState) -> Positions:
        """Returns the positions that ``endingOffsets`` names; by default all mutations, of any level.

        Raises as ``starting``.
        """
        end = self._options.end
        if isinstance(end, int):
            return self.since(feed, end)
        if end == LATEST:
            high = {id: Position.at(p.log, p.high_seq) for id, p in feed.partitions.items() if p.log}
            return Positions(feed.cluster_id, feed.feed_id, high)
        positions = Positions.parse(end)
        check_feed(positions, feed)
        return positions

    def since(self, feed: FeedState, since_us: int, *, strict: bool = True) -> Positions:
        """Returns the position before the first mutation of each partition with this timestamp or a later one.

        If such a mutation may be trimmed, raises DataGone, or unless ``strict``, takes the position before the first
        mutation that is kept.
        """
        found: dict[int, Position] = {}
        for id in feed.partitions:
            try:
                found[id] = self._since(id, since_us)
            except DataGone:
                if strict:
                    raise
                trim_seq = self._trim_seq(feed, id)
                if trim_seq:
                    found[id] = Position.at(feed.partitions[id].log, trim_seq)
        return Positions(feed.cluster_id, feed.feed_id, found)

    def _since(self, id: int, since_us: int) -> Position:
        wanted = self._wanted(id)._replace(since="now", since_us=since_us, until="now")
        with self._connected().stream(wanted, 1) as stream:
            position = stream.positions[id]
            event = next((event for event in stream if isinstance(event, Mutations)), None)
        if event is not None and position.snapshot_last == position.seq:
            # The node begins with a whole block, whose first rows have earlier timestamps.
            return Position.at(position.log, event.first_seq - 1)
        return position

    def _trim_seq(self, feed: FeedState, id: int) -> int:
        return self._answer(feed.feed_id, id).trim_seq if feed.is_history else 0

    def peek(self, feed: FeedState, partition: int, position: Position) -> NextSnapshot:
        """Returns the next snapshot of ``partition`` after ``position``."""
        shown = feed.partitions[partition].visible_seq
        since = Positions(feed.cluster_id, feed.feed_id, {partition: position} if position != NOTHING else {})
        wanted = self._wanted(partition)._replace(since=since, stored=(since,), until={partition: shown})
        wanted = wanted._replace(until_logs={partition: feed.partitions[partition].log}, feed_id=feed.feed_id)
        last = 0
        with self._connected().stream(wanted, 1) as stream:
            for event in stream:
                if isinstance(event, SnapshotStart | SnapshotEnd):
                    last = event.last_seq
                elif isinstance(event, Mutations):
                    header = event.block.header
                    return NextSnapshot(min(last, shown), header.raw_bytes / header.rows)
        return NextSnapshot(shown, 0.0)

    def _wanted(self, partition: int) -> Subscription:
        options = self._options
        return Subscription(
            options.feed,
            partitions=frozenset([partition]),
            visibility=options.level,
            on_rollback="restart",
            ring_rows=0,
        )

    def _answer(self, feed_id: bytes, partition: int) -> ResumeAnswer:
        client = self._connected()
        request = request_of(feed_id, partition, NOTHING, self._options.level)
        return ResumeAnswer.of_json(client.call(Opcode.EXPLAIN_RESUME, request.to_json(), client.deadline(None)))

    def _connected(self) -> blocking.Client:
        if self._client is None:
            with contextlib.ExitStack() as on_error:
                client = on_error.enter_context(_client(self._options, f"spark {self._options.query_name or SOURCE}"))
                client.level(self._options.level.name.lower())  # raises NotDurable if this node cannot show it
                on_error.pop_all()
            self._client = client
        return self._client


def check_feed(positions: Positions, feed: FeedState) -> None:
    """Raises BadPosition for positions of another feed, UnknownFeed for a partition that the feed does not have."""
    positions.require_feed(feed.cluster_id, feed.feed_id)
    missing = positions.keys() - feed.partitions.keys()
    if missing:
        raise UnknownFeed(f"the feed has no partition {min(missing)}: it has {len(feed.partitions)}")
