"""Stores what consumers and groups own and have committed: rows of ``_feeds``, which the leader of the feeds writes.

The rows of one call are one block, however many partitions it has (feeds/consumer_rows.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tailrace.errors import NotLeader, Overloaded, TailraceError, UnknownFeed
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace_server.feeds.consumer_rows import ConsumerRows, OwnedPartition, row_key, row_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.wire.consumer_messages import Commit, ConsumerId, Join, Reset
    from tailrace_server.config import Limits
    from tailrace_server.partition.partition import Partition
    from tailrace_server.upkeep.storage import Storage


class ConsumerChanges:
    """The changes of consumers and groups, on the node that leads ``_feeds``. The caller has checked that it does."""

    def __init__(self, storage: Storage, limits: Limits) -> None:
        self._storage = storage
        self._limits = limits
        self._feeds = storage.feeds
        self._clock = storage.host.clock

    def rows(self) -> ConsumerRows:
        """Returns the consumers and groups. May read segments; SegmentDamaged."""
        return self._feeds.consumers()

    def partitions_of(self, consumer: ConsumerId, chosen: Iterable[int] | None = None) -> list[Partition]:
        """Returns the partitions of a consumer's feed, or those that are ``chosen``. Raises UnknownFeed."""
        feed = self._feeds.of_id(consumer.feed_id)
        if chosen is None:
            return list(feed.partitions)
        numbers = sorted(set(chosen))
        missing = [number for number in numbers if number >= len(feed.partitions)]
        if missing:
            raise UnknownFeed(f"feed {feed.info.name!r} has no partition {min(missing)}: it has {len(feed.partitions)}")
        return [feed.partitions[number] for number in numbers]

    def grant(self, join: Join, partitions: Iterable[Partition]) -> dict[int, OwnedPartition]:
        """Gives partitions to a member, as `granted`. Raises Overloaded, NoSpace, NotDurable."""
        granted = self.granted(join, partitions)
        self.write(join.consumer, granted)
        return granted

    def granted(self, join: Join, partitions: Iterable[Partition]) -> dict[int, OwnedPartition]:
        """Returns partitions as they are when a member gets them: the next generation, and the position to begin at."""
        known, now_us = self.rows().of(join.consumer), self._clock.wall_us()
        granted = {}
        for partition in partitions:
            before = known.get(partition.id, OwnedPartition(0, b"", None, now_us))
            position = before.position or start_of(partition, join.since, join.level)
            granted[partition.id] = OwnedPartition(before.generation + 1, join.member, position, before.committed_us)
        return granted

    def commit(self, commit: Commit) -> list[int]:
        """Stores the positions of those partitions that the member owns in its generation. Returns the others.

        Raises NotLeader (the member knows a later generation than this node), NoSpace, NotDurable.
        """
        known, now_us = self.rows().of(commit.consumer), self._clock.wall_us()
        changed, stale = {}, []
        for partition, generation in commit.generations.items():
            owned = known.get(partition)
            if owned is None or generation > owned.generation:
                if owned is not None or commit.consumer.feed_id not in self._feeds:
                    raise NotLeader(f"this node knows no generation {generation} of partition {partition}: ask again")
                stale.append(partition)  # it was reset
            elif (owned.owner, owned.generation) == (commit.member, generation):
                changed[partition] = owned._replace(position=commit.positions[partition], committed_us=now_us)
            else:
                stale.append(partition)
        if changed:
            self.write(commit.consumer, changed)
        return stale

    def write(self, consumer: ConsumerId, changed: Mapping[int, OwnedPartition | None]) -> None:
        """Writes the rows of partitions; None forgets one. Raises Overloaded, NoSpace, NotDurable."""
        rows, [system] = self.rows(), self._feeds.system.partitions
        added = sum(each is not None and partition not in rows.of(consumer) for partition, each in changed.items())
        most = self._limits.consumer_partitions_max
        if added and rows.partition_count + added > most:
            raise Overloaded(
                f"this cluster keeps the positions of {rows.partition_count} partitions of consumers and groups, and "
                f"at most {most}: forget those that are not used, or raise consumer_partitions_max"
            )
        written = {row_key(consumer, p): None if each is None else row_value(each) for p, each in changed.items()}
        clock = self._clock
        self._feeds.write_rows(written, self._storage.journal, now_us=clock.wall_us(), now=clock.monotonic())
        self._storage.committer.note(system)
        self._storage.flusher.note(system)

    def reset(self, reset: Reset) -> None:
        """Moves positions, or forgets them. The generations grow, so that no earlier owner can commit any more.

        Raises UnknownFeed (there is no such partition, or no such consumer), NoSpace, NotDurable.
        """
        consumer, known, now_us = reset.consumer, self.rows().of(reset.consumer), self._clock.wall_us()
        if not known:
            raise UnknownFeed(f"feed {self._feeds.of_id(consumer.feed_id).info.name!r} has no {consumer}")
        if reset.to == "forgotten":
            self.write(consumer, dict.fromkeys(p for p in reset.partitions if p in known))
            return
        changed: dict[int, OwnedPartition | None] = {}
        for number in reset.partitions:
            partition = self._feeds.partition(consumer.feed_id, number)
            given = reset.positions
            position = start_of(partition, reset.to, Level.DISK) if given is None else given[number]
            generation = known[number].generation if number in known else 0
            changed[number] = OwnedPartition(generation + 1, b"", position, now_us)
        self.write(consumer, changed)

    def forget(self, consumer: ConsumerId) -> None:
        """Forgets a consumer or a group, with its positions. NoSpace, NotDurable."""
        partitions = self.rows().of(consumer)
        if partitions:
            self.write(consumer, dict.fromkeys(partitions))

    def is_dropped(self, consumer: ConsumerId) -> bool:
        """Returns whether the feed of a consumer was dropped."""
        return consumer.feed_id not in self._feeds

    def hurry(self) -> None:
        """Has what was written come to the disk soon: members wait for it."""
        self._storage.committer.hurry()

    def dropped(self) -> list[ConsumerId]:
        """Returns the consumers of feeds that were dropped for good. `forget` removes their rows."""
        rows = self.rows()
        gone = [each for each in rows if each.feed_id not in self._feeds]
        if not gone:
            return []
        listed = self._feeds.rows()
        return [each for each in gone if (row := listed.get(each.feed_id)) is None or row.creation is None]


def start_of(partition: Partition, since: str, level: Level) -> Position | None:
    """Returns the position at which a new owner begins; None if it has to commit one before it reads."""
    if since == "beginning":
        return Position.at(FailoverLog(), 0)
    if since == "now":
        if not partition.log:
            raise TailraceError(f"partition {partition.id} has no history here yet: ask again")
        return Position.at(partition.log, partition.visible_seq(level))
    return None
