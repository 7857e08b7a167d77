"""Sums over the partitions and streams of a node, by feed, by consumer and by replica; one of them in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.replication.role import Role
from tailrace_server.serving.metrics.lags import Lag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tailrace.model import Level
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.serving.metrics.first_rows import FirstRows
    from tailrace_server.serving.services import Services
    from tailrace_server.stream.partition_stream import PartitionStream
    from tailrace_server.stream.told_progress import ToldProgress


# The first part of the ids of consumers that have gone. Those of others begin with a number.
GONE = "gone"


class Totals(NamedTuple):
    """Numbers of the node that only grow."""

    written_mutations: int
    written_bytes: int
    sent_bytes: int


class FeedSums:
    """The sums over the partitions of a feed."""

    __slots__ = ("blocks", "durable", "memory", "mutations", "quorum_lag", "segment_bytes", "segments")

    def __init__(self) -> None:
        self.mutations = self.durable = self.quorum_lag = 0
        self.memory = self.blocks = self.segments = self.segment_bytes = 0

    def add(self, partition: Partition, *, counts_quorum: bool) -> None:
        """Adds a partition. ``counts_quorum``: a majority is to have its rows."""
        self.mutations += partition.high_seq
        self.durable += partition.durable_seq
        if counts_quorum:
            self.quorum_lag += max(0, partition.high_seq - partition.quorum_seq)
        self.memory += partition.tree.memory_bytes
        self.blocks += partition.tree.block_count
        self.segments += len(partition.chain.segments)
        self.segment_bytes += partition.chain.nbytes

    def join(self, other: FeedSums) -> None:
        """Adds the sums of another feed."""
        self.mutations += other.mutations
        self.segments += other.segments
        self.segment_bytes += other.segment_bytes


class ConsumerSums:
    """The sums over the streams that one connection has of one feed.

    ``connection`` is None, and ``stopped_at`` in monotonic seconds, of a named consumer that has gone. ``tells``: it
    tells its progress, since it handles rows elsewhere.
    """

    __slots__ = (
        "connection",
        "credited",
        "feed",
        "high",
        "id",
        "lag",
        "level",
        "name",
        "sent",
        "stopped_at",
        "streams",
        "tells",
        "unhandled",
        "visible",
    )

    def __init__(
        self, id: str, name: str, connection: Any, feed: Feed, level: str = "", stopped_at: float | None = None
    ) -> None:
        self.id = id
        self.name = name
        self.connection = connection
        self.stopped_at = stopped_at
        self.feed = feed.info.name
        self.level = level
        self.tells = False
        self.lag = Lag()
        self.streams = self.sent = self.visible = self.high = self.unhandled = 0
        self.credited: int = 0 if connection is None else connection.rounds.window.credited_bytes

    def add_stopped(self, partition: Partition, seq: int, rows: FirstRows) -> None:
        """Adds a partition that the consumer had handled up to ``seq``."""
        self._add_handled(partition, seq, partition.high_seq, rows)

    def add_told(self, progress: ToldProgress, rows: FirstRows) -> Iterator[None]:
        """Adds the partitions of which the consumer has told how far it is; one in each step."""
        self.tells = True
        for partition, seq in progress.seqs.items():
            self._add_handled(partition, seq, partition.visible_seq(progress.level), rows)
            yield

    def _add_handled(self, partition: Partition, seq: int, visible_seq: int, rows: FirstRows) -> None:
        self.sent += seq
        self.visible += max(seq, visible_seq)
        self.high += partition.high_seq
        if seq < partition.high_seq:
            self.lag.add(mutations=partition.high_seq - seq)
            self.lag.lacks(rows, partition, seq)

    def add(self, stream: PartitionStream, rows: FirstRows) -> None:
        """Adds a stream, and what it has not sent."""
        partition, sent_seq = stream.partition, stream.sent_seq
        last_seq = partition.high_seq if stream.end_seq is None else min(stream.end_seq, partition.high_seq)
        self.streams += 1
        self.sent += sent_seq
        self.high += partition.high_seq
        self.visible += max(sent_seq, min(last_seq, partition.visible_seq(stream.level)))
        if sent_seq < last_seq:
            self.lag.add(mutations=last_seq - sent_seq)
            self.lag.lacks(rows, partition, sent_seq)


class Sample:
    """What one look has found. Only its own methods change its fields, while `steps` runs."""

    def __init__(self, node: Services, rows: FirstRows, number_of: Callable[[Any], int]) -> None:
        """``number_of`` gives the number of a connection, which stays the same."""
        self._node = node
        self._rows = rows
        self._number_of = number_of
        self.at = node.clock.monotonic()
        self.wall_us = node.clock.wall_us()
        self.feeds: dict[str, FeedSums] = {}  # in the order of their names
        self.all = FeedSums()
        self.term = 0  # the highest of all branches
        self.consumers: dict[str, ConsumerSums] = {}
        self.replicas: dict[bytes, Lag] = {}  # by placement id
        self.partitions = self.connections = self.streams = 0
        written = node.storage.written
        self._sent_bytes = node.traffic.ended_sent_bytes
        self._written = written.mutations, written.bytes

    @property
    def totals(self) -> Totals:
        """The numbers of the node that only grow."""
        return Totals(*self._written, self._sent_bytes)

    @property
    def lags(self) -> list[Lag]:
        """All lags, which are to be settled."""
        return [*self.replicas.values(), *(consumer.lag for consumer in self.consumers.values())]

    def steps(self) -> Iterator[None]:
        """Reads a partition or a stream in each step. Feeds and connections may come and go between two steps."""
        for connection in self._node.connections:
            yield from self._connection(connection)
        yield from self._stopped()
        for feed in list(self._node.feeds):
            if feed.info.feed_id != SYSTEM_FEED_ID:
                sums = self.feeds[feed.info.name] = FeedSums()
                for partition in feed.partitions:
                    self._partition(partition, sums)
                    yield
                self.all.join(sums)

    def _connection(self, connection: Any) -> Iterator[None]:
        rounds = connection.rounds
        self.connections += 1
        self._sent_bytes += rounds.window.sent_bytes
        yield
        if connection.replica is not None:
            return
        self.streams += len(rounds.slots)
        by_feed: dict[bytes, ConsumerSums] = {}
        if connection.progress is not None:
            told = self._consumer(by_feed, connection, connection.progress.feed_id, connection.progress.level)
            if told is not None:
                yield from told.add_told(connection.progress, self._rows)
        for slot in list(rounds.slots.values()):
            sums = self._consumer(by_feed, connection, slot.stream.partition.feed_id, slot.stream.level)
            if sums is not None:
                sums.add(slot.stream, self._rows)
            yield
        for mark in list(rounds.window.unhandled.marks()):
            found = by_feed.get(mark.partition.feed_id)
            if found is not None:
                found.unhandled += mark.mutations
                found.lag.add(mutations=mark.mutations)
                found.lag.lacks(self._rows, mark.partition, mark.after_seq)
                yield

    def _stopped(self) -> Iterator[None]:
        """Reads the named consumers that have gone."""
        node = self._node
        feeds = {each.feed: node.feeds.get(each.feed) for each in self.consumers.values()}
        connected = {
            (each.name, feed.info.feed_id) for each in self.consumers.values() if (feed := feeds[each.feed]) is not None
        }
        for (name, feed_id), partition, seq in node.stopped.lags(node, connected):
            feed = node.feeds.find(feed_id)
            if feed is not None:
                id = f"{GONE}.{feed.info.name}.{name}"
                if id not in self.consumers:
                    at = node.stopped.stopped_at((name, feed_id))
                    self.consumers[id] = ConsumerSums(id, name, None, feed, stopped_at=at)
                self.consumers[id].add_stopped(partition, seq, self._rows)
            yield

    def _consumer(
        self, by_feed: dict[bytes, ConsumerSums], connection: Any, feed_id: bytes, level: Level
    ) -> ConsumerSums | None:
        sums = by_feed.get(feed_id)
        if sums is None:
            feed = self._node.feeds.find(feed_id)
            if feed is None:
                return None
            id = f"{self._number_of(connection)}.{feed.info.name}"
            sums = by_feed[feed_id] = ConsumerSums(id, connection.name, connection, feed, level.name.lower())
            self.consumers[id] = sums
        return sums

    def _partition(self, partition: Partition, sums: FeedSums) -> None:
        self.partitions += 1
        self.term = max(self.term, partition.log.term)
        leadership = self._node.leaderships.of_partition(partition)
        leads = leadership.role is Role.LEADER
        sums.add(partition, counts_quorum=leads and leadership.in_set and not partition.pushes.by_segments)
        if not leads:
            return
        for placement_id, peer in leadership.replicas.peers.items():
            missing = peer.lag(partition)
            lag = self.replicas.get(placement_id)
            if lag is None:
                lag = self.replicas[placement_id] = Lag()
            if missing:
                lag.add(mutations=missing)
                lag.lacks(self._rows, partition, partition.high_seq - missing)
