"""The feeds of a node, by name and by id, and how they come back from the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tailrace.block import Block
from tailrace.errors import FeedExists, Overloaded, UnknownFeed
from tailrace.failover import FailoverLog
from tailrace.model import FeedInfo
from tailrace_server.feed import Feed, creation_to_bytes, feed_of_creation
from tailrace_server.identity import BadDirectory
from tailrace_server.journal import BlockCase, Journal, Record, RecordKind, decide_block
from tailrace_server.partition import Partition


class Catalog:
    """The feeds of a node."""

    def __init__(self) -> None:
        self._by_name: dict[str, Feed] = {}
        self._by_id: dict[bytes, Feed] = {}

    def __iter__(self) -> Iterator[Feed]:
        return iter(sorted(self._by_name.values(), key=lambda feed: feed.info.name))

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Feed:
        """The feed of this name. Raises UnknownFeed."""
        feed = self._by_name.get(name)
        if feed is None:
            raise UnknownFeed(f"there is no feed {name!r}; create it, or list the feeds there are")
        return feed

    def of_id(self, feed_id: bytes) -> Feed:
        """The feed of this id. Raises UnknownFeed."""
        feed = self._by_id.get(feed_id)
        if feed is None:
            raise UnknownFeed(f"there is no feed of id {feed_id.hex()}: it was dropped, or belongs to another node")
        return feed

    def partition(self, feed_id: bytes, number: int) -> Partition:
        """A partition. Raises UnknownFeed."""
        partitions = self.of_id(feed_id).partitions
        if number >= len(partitions):
            raise UnknownFeed(f"feed {self.of_id(feed_id).info.name!r} has no partition {number}")
        return partitions[number]

    def partitions(self) -> Iterator[Partition]:
        """Every partition of every feed."""
        for feed in self:
            yield from feed.partitions

    def _add(self, feed: Feed) -> None:
        self._by_name[feed.info.name] = feed
        self._by_id[feed.info.feed_id] = feed

    def _remove(self, feed: Feed) -> None:
        del self._by_name[feed.info.name]
        del self._by_id[feed.info.feed_id]

    def existing(self, info: FeedInfo, *, exist_ok: bool) -> Feed | None:
        """The feed that a creation would find, None where there is none. Raises FeedExists."""
        feed = self._by_name.get(info.name)
        if feed is None:
            other = self._by_id.get(info.feed_id)
            if other is not None:
                raise FeedExists(
                    f"feed {other.info.name!r} has the id {info.feed_id.hex()}: ids are random, make another"
                )
            return None
        if feed.info.feed_id == info.feed_id:
            return feed  # the same request, sent again
        if not exist_ok:
            raise FeedExists(f"there is a feed {info.name!r} already")
        differing = [
            f"{field} is {theirs!r}, not {ours!r}"
            for field, ours, theirs in zip(FeedInfo._fields, info, feed.info, strict=True)
            if field != "feed_id" and ours != theirs
        ]
        if differing:
            raise FeedExists(f"there is a feed {info.name!r} already, and its {'; its '.join(differing)}")
        return feed

    def create(self, info: FeedInfo, journal: Journal, branch: bytes, feeds_max: int) -> Feed:
        """Makes a feed by one record, so there is all of it or nothing. Raises Overloaded, NoSpace, JournalFailed."""
        if len(self) >= feeds_max:
            raise Overloaded(f"this node holds {len(self)} feeds, and at most {feeds_max}")
        payload = creation_to_bytes(info, branch)
        journal.append(RecordKind.FEED_CREATED, info.feed_id, 0, payload)
        feed = feed_of_creation(payload)
        self._add(feed)
        return feed

    def __contains__(self, feed_id: bytes) -> bool:
        return feed_id in self._by_id

    def drop(self, feed_id: bytes, journal: Journal) -> Feed:
        """Drops a feed. Raises UnknownFeed."""
        feed = self.of_id(feed_id)
        journal.append(RecordKind.FEED_DROPPED, feed.info.feed_id, 0, b"")
        self._remove(feed)
        return feed

    def recover(self, record: Record, now: float) -> None:
        """Applies a record that the journal held, in the order of the file."""
        match record.kind:
            case RecordKind.FEED_CREATED:
                self._add(feed_of_creation(record.payload))
            case RecordKind.FEED_DROPPED:
                feed = self._by_id.get(record.feed_id)
                if feed is not None:
                    self._remove(feed)
            case RecordKind.FAILOVER_ENTRY:
                if record.feed_id in self._by_id:
                    self.partition(record.feed_id, record.partition).log = FailoverLog.from_json(
                        json.loads(record.payload)
                    )
            case RecordKind.BLOCK:
                if record.feed_id in self._by_id:  # else it was dropped with its feed
                    assert record.block is not None
                    _recover_block(self.partition(record.feed_id, record.partition), record.block, record.lsn, now)
            case _:
                raise BadDirectory(
                    f"the journal has a record of kind {record.kind.name}, which this version does not know: start the "
                    "version that wrote it"
                )


def _recover_block(partition: Partition, block: Block, lsn: int, now: float) -> None:
    header = block.header
    held = partition.tree.find(header.first_seq)
    case = decide_block(
        lsn=lsn,
        first_seq=header.first_seq,
        last_seq=header.last_seq,
        rollbacks=(),
        flushed_seq=0,
        held_seq=partition.high_seq,
        known=held is not None and held.header.body_sum == header.body_sum,
    )
    if case is BlockCase.NEXT:
        partition.recover_block(block, now)
    elif case is BlockCase.GAP:
        raise BadDirectory(
            f"the journal has seqs {header.first_seq} to {header.last_seq} of partition {partition.id} after seq "
            f"{partition.high_seq}: what lies between is missing; restore the directory from a backup"
        )


def begin_branch(partition: Partition, branch: bytes, journal: Journal) -> None:
    """Begins a new branch where the partition ends; the entry stands in the journal after the blocks up to its base."""
    log = partition.new_branch(branch)
    journal.append(RecordKind.FAILOVER_ENTRY, partition.feed_id, partition.id, json.dumps(log.to_json()).encode())
    partition.log = log
