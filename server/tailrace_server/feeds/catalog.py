"""The feeds of a node, by name and by id. ``recovery.py`` restores them at a start.

The feed ``_feeds`` lists the others; their directories follow it (``reconcile``).
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from typing import NamedTuple

from tailrace.errors import FeedExists, NoSpace, NotDurable, Overloaded, UnknownFeed
from tailrace.model import FeedInfo
from tailrace.model.failover import SEQ_MAX
from tailrace_server.feeds.consumer_rows import ConsumerRows
from tailrace_server.feeds.feed import (
    SYSTEM_FEED_ID,
    SYSTEM_FEED_NAME,
    Feed,
    creation_to_bytes,
    feed_of_creation,
    settings_of_creation,
    system_feed,
)
from tailrace_server.feeds.feed_rows import FeedRow, FeedRows, system_blocks
from tailrace_server.feeds.feed_settings import Floors, as_listed
from tailrace_server.feeds.token_rows import TokenRows
from tailrace_server.journal import CleanPartition, Journal, RecordKind
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.writing import append_block
from tailrace_server.segment import SegmentDamaged
from tailrace_server.state.memory import MemoryAccount

log = logging.getLogger("tailrace.server")


class Drop(NamedTuple):
    """A dropped feed whose files still exist: the place (lsn) of the journal's record of the drop, and its partitions.

    ``place`` is None while only ``_feeds`` has the drop, because there was no room for the journal's record.
    ``is_marked`` if the directory is durably marked as well, so that the next start does not need the journal's record.
    """

    place: int | None
    partitions: tuple[Partition, ...]
    is_marked: bool = False


class Catalog:
    """The feeds of a node.

    ``creations`` are feeds whose file FEED is not written yet, with the place (lsn) of the journal's record. ``drops``
    are feeds whose files are not removed yet.
    """

    def __init__(self, account: MemoryAccount) -> None:
        self.creations: dict[bytes, int] = {}
        self.drops: dict[bytes, Drop] = {}
        self.returning: frozenset[bytes] = frozenset()  # listed again, while the files of the dropped feed are removed
        self.account = account  # for the memory of all write queues
        self.system = system_feed(account)
        # Whether ``reconcile`` left a feed whose drop may still be lost.
        self.awaits_drops = False
        self.has_more = False  # whether the last ``reconcile`` has ended early
        self.additions = 0  # the number of feeds added, those that the start found included
        self._on_created: Callable[[Feed], None] = _nothing
        self._on_switched: Callable[[Feed], None] = _nothing
        self._on_removed: Callable[[], None] = lambda: None
        self._reconciled = (0, -1)  # the rollbacks of ``_feeds``, and the seq up to which it was read
        self._rows = FeedRows(self.system.partitions[0])
        self._by_name: dict[str, Feed] = {}
        self._by_id: dict[bytes, Feed] = {SYSTEM_FEED_ID: self.system}
        self._name_counts: Counter[str] = Counter()  # Invariant: how many feeds of ``_by_id`` have each name
        self._partition_count = len(self.system.partitions)  # Invariant: those of ``_by_id``
        self._in_order: tuple[Partition, ...] | None = None  # those of ``_by_id``; None if the feeds have changed since

    def when_created(self, created: Callable[[Feed], None]) -> None:
        """Calls ``created`` with each feed that is created from now on, before anything else uses the feed."""
        self._on_created = created

    def when_switched(self, switched: Callable[[Feed], None]) -> None:
        """Calls ``switched`` with each feed whose replication mode has changed, from now on."""
        self._on_switched = switched

    def when_removed(self, removed: Callable[[], None]) -> None:
        """Calls ``removed`` each time that the files of a dropped feed are gone that is listed again, from now on."""
        self._on_removed = removed

    def __iter__(self) -> Iterator[Feed]:
        return iter(sorted(self._by_name.values(), key=lambda feed: feed.info.name))

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Feed:
        """Returns the feed of this name. Raises UnknownFeed."""
        feed = self.system if name == SYSTEM_FEED_NAME else self._by_name.get(name)
        if feed is None:
            raise UnknownFeed(f"there is no feed {name!r}; create it, or list the feeds there are")
        return feed

    def get(self, name: str) -> Feed | None:
        """Returns the feed of this name, other than ``_feeds``, or None."""
        return self._by_name.get(name)

    def find(self, feed_id: bytes) -> Feed | None:
        """Returns the feed of this id, or None."""
        return self._by_id.get(feed_id)

    def of_id(self, feed_id: bytes) -> Feed:
        """Returns the feed of this id. Raises UnknownFeed."""
        feed = self._by_id.get(feed_id)
        if feed is None:
            raise UnknownFeed(f"there is no feed of id {feed_id.hex()}: it was dropped, or belongs to another node")
        return feed

    def retention_of(self, feed_id: bytes) -> FeedInfo:
        """Returns the settings by which rows of a feed may be dropped now. Raises UnknownFeed."""
        return self.of_id(feed_id).retention(self.system.partitions[0].stable_seq)

    def partition(self, feed_id: bytes, number: int) -> Partition:
        """Returns a partition. Raises UnknownFeed."""
        feed = self._by_id.get(feed_id) or self.of_id(feed_id)
        partitions = feed.partitions
        if number >= len(partitions):
            raise UnknownFeed(f"feed {feed.info.name!r} has no partition {number}")
        return partitions[number]

    def count_partitions(self) -> int:
        """Returns how many partitions all feeds have together."""
        return self._partition_count

    def partitions(self) -> Iterator[Partition]:
        """Returns an iterator of the partitions that all feeds have at the call, that of ``_feeds`` first.

        They include a feed whose name belongs to a newer feed already, while its drop may still be lost.
        """
        if self._in_order is None:
            others = (feed for feed in self._by_id.values() if feed is not self.system)
            feeds = sorted(others, key=lambda feed: (feed.info.name, feed.info.feed_id))
            self._in_order = (*self.system.partitions, *(each for feed in feeds for each in feed.partitions))
        return iter(self._in_order)

    def feeds(self) -> list[Feed]:
        """Returns every feed, including ``_feeds``, in no order."""
        return list(self._by_id.values())

    def known_ids(self) -> set[bytes]:
        """Returns the feeds whose directories exist, or are still to be removed."""
        return self._by_id.keys() | self.drops.keys()

    def clean_partitions(self) -> list[CleanPartition]:
        """Returns the entry of each partition for the mark of a clean stop."""
        return [CleanPartition(p.feed_id, p.id, p.log.branch, p.high_seq) for p in self.partitions() if p.log]

    def add(self, feed: Feed) -> None:
        """Adds a feed that is durable, or journaled."""
        replaced = self._by_id.get(feed.info.feed_id)
        self._partition_count += len(feed.partitions) - (0 if replaced is None else len(replaced.partitions))
        self._by_name[feed.info.name] = feed
        self._by_id[feed.info.feed_id] = feed
        self._in_order = None
        self._rows.unsettle(feed.info.feed_id)
        if replaced is None:
            self._name_counts[feed.info.name] += 1
        self.additions += 1

    def _remove(self, feed: Feed) -> None:
        name = feed.info.name
        self._partition_count -= len(self._by_id.pop(feed.info.feed_id).partitions)
        self._in_order = None
        self._rows.unsettle(feed.info.feed_id)
        del self._by_name[name]
        self._name_counts[name] -= 1
        if not self._name_counts[name]:
            del self._name_counts[name]
            return
        # In a recovery the next feed of this name may exist already, from its file FEED.
        [self._by_name[name], *_] = [other for other in self._by_id.values() if other.info.name == name]

    def existing(self, info: FeedInfo, *, exist_ok: bool, asked: Container[str] = FeedInfo._fields) -> Feed | None:
        """Returns the feed that a creation finds, or None if no feed has that name.

        Args:
            info: The feed that would be made.
            exist_ok: Whether a feed that exists is a good answer.
            asked: The settings that the request names. Only these have to be equal.

        Raises:
            FeedExists: The feed exists and differs, or ``exist_ok`` is false.
            Overloaded: The feed is being dropped, and will be gone before a creation could be answered. Or it was
                dropped, and its files are not gone yet.
        """
        feed = self._by_name.get(info.name)
        if feed is None:
            if info.feed_id in self.drops:  # the removal would take the files of the second one, too
                raise Overloaded(f"the files of feed {info.name!r} are being removed: ask again")
            other = self._by_id.get(info.feed_id)
            if other is not None:
                raise FeedExists(
                    f"feed {other.info.name!r} has the id {info.feed_id.hex()}: ids are random, make another"
                )
            return None
        if self.is_dropping(feed):
            raise Overloaded(f"feed {info.name!r} is being dropped, which may still be lost: ask again")
        if feed.info.feed_id == info.feed_id:
            return feed  # the same request, sent again
        if not exist_ok:
            raise FeedExists(f"there is a feed {info.name!r} already")
        differing = [
            f"{field} {_shown(theirs)} (asked for: {_shown(ours)})"
            for field, ours, theirs in zip(FeedInfo._fields, info, feed.info, strict=True)
            if field != "feed_id" and field in asked and ours != theirs
        ]
        if differing:
            raise FeedExists(
                f"there is a feed {info.name!r} already, with other settings: {', '.join(differing)}. Leave these "
                "settings out to use the feed as it is, or take another name"
            )
        return feed

    def create(self, info: FeedInfo, journal: Journal, branch: bytes, feeds_max: int) -> Feed:
        """Makes a feed by one record, so that a crash leaves all of it or nothing.

        The caller then writes its row into ``_feeds``, by ``write_rows`` and ``listed``. Raises Overloaded, NoSpace,
        JournalFailed.
        """
        self.check_room(feeds_max)
        return self._create(info.feed_id, creation_to_bytes(info, branch), journal)

    def change(self, feed: Feed, info: FeedInfo, floors: Floors) -> None:
        """Sets the settings of a feed, of which ``_feeds`` has a row, and tells `when_switched` of another mode."""
        is_switched = feed.info.replication != info.replication
        if (feed.info, feed.floors) != (info, floors):
            feed.set(info, floors)
        if is_switched:
            self._on_switched(feed)

    def listed(self, feed: Feed) -> None:
        """Notes that the last row of ``_feeds`` is the one that lists ``feed``."""
        _listed(feed, self.system.partitions[0].high_seq)
        with contextlib.suppress(SegmentDamaged):  # a call that needs the rows raises it
            self._rows.read()  # each row as it comes, not thousands when one is needed
            self._rows.settle(feed.info.feed_id)

    def check_room(self, feeds_max: int) -> None:
        """Raises Overloaded if the node has ``feeds_max`` feeds."""
        if len(self) >= feeds_max:
            raise Overloaded(f"this node holds {len(self)} feeds, and at most {feeds_max}")

    def _create(self, feed_id: bytes, payload: bytes, journal: Journal) -> Feed:
        feed = feed_of_creation(payload, self.account)
        self.creations[feed_id] = journal.append(RecordKind.FEED_CREATED, feed_id, 0, payload)
        self.add(feed)
        self._on_created(feed)
        return feed

    def is_dropping(self, feed: Feed) -> bool:
        """Returns whether ``_feeds`` has a drop of ``feed`` that may still be lost; the feed exists until then.

        May read segments; SegmentDamaged.
        """
        row = self._rows.read().get(feed.info.feed_id)
        return row is not None and row.creation is None

    def rows(self) -> Mapping[bytes, FeedRow]:
        """Returns the newest row of ``_feeds`` for each feed id. May read segments; SegmentDamaged."""
        return self._rows.read()

    def tokens(self) -> TokenRows:
        """Returns the tokens by the newest rows of ``_feeds``. May read segments; SegmentDamaged."""
        self._rows.read()
        return self._rows.tokens

    def consumers(self) -> ConsumerRows:
        """Returns the consumers and groups by the newest rows of ``_feeds``. May read segments; SegmentDamaged."""
        self._rows.read()
        return self._rows.consumers

    def version(self) -> tuple[int, int]:
        """Returns a value that changes with the rows of ``_feeds``; it costs nothing."""
        partition = self.system.partitions[0]
        return partition.rollbacks, partition.high_seq

    def write_rows(self, rows: Mapping[bytes, bytes | None], journal: Journal, *, now_us: int, now: float) -> None:
        """Writes rows into ``_feeds``: ``creation_to_bytes`` by feed id for a creation, None for a drop; and tokens.

        A feed is made before its row is written, and dropped after it. So a failure between the two is repaired: the
        next start lists a feed without a row, and drops a feed with a row of a drop. NoSpace, NotDurable.
        """
        for block in system_blocks(rows):
            append_block(self.system.partitions[0], block, journal, now_us=now_us, now=now)

    def reconcile(
        self,
        journal: Journal,
        feeds_max: int,
        *,
        whole: bool = True,
        keep_absent: bool = False,
        most: int | None = None,
    ) -> tuple[list[Feed], list[Feed]]:
        """Makes the feeds equal to the rows of ``_feeds`` up to its high seq; returns those dropped and those created.

        A feed is dropped only if its drop cannot be lost any more (``Partition.stable_seq``); ``awaits_drops`` tells
        that a later call has more to drop. A replica has to hold its leader's feeds: if they are more than
        ``feeds_max``, it logs a warning. Reads segments.

        Args:
            journal: The node's.
            feeds_max: The bound of the node's feeds.
            whole: Whether ``_feeds`` has all of the leader's rows, so that a feed without a row is to be dropped.
            keep_absent: Whether feeds without a row stay all the same.
            most: The feeds that are created and dropped at most; None for no bound. ``has_more`` tells of others.

        Raises:
            SegmentDamaged, NoSpace, JournalFailed: Some feeds may be dropped or created; call it again.
        """
        rows, partition = self._rows.read(), self.system.partitions[0]
        unsettled = [(feed_id, rows.get(feed_id)) for feed_id in self._rows.unsettled]
        listed = [(feed_id, row, row.creation) for feed_id, row in unsettled if row and row.creation is not None]
        # A client has repeated its CREATE_FEED at a later leader, after a failover had lost the first row.
        self.returning = frozenset(feed_id for feed_id, _, _ in listed if feed_id in self.drops)
        created: list[Feed] = []
        self.has_more = True  # even if one of these fails
        for feed_id, row, creation in listed:
            if feed_id in self.drops:
                continue
            if feed_id not in self._by_id:
                if len(created) == most:
                    return [], created
                created.append(self._create(feed_id, creation, journal))
            self._is_listed(self._by_id[feed_id], row.seq, creation)
        if created and len(self) > feeds_max:
            log.warning(
                "this node holds %s feeds, more than its bound of %s: raise the limit, or drop feeds on the leader",
                len(self),
                feeds_max,
            )
        gone = {feed_id: row for feed_id, row in unsettled if row is None or row.creation is None}
        for feed_id in [feed_id for feed_id in gone if feed_id not in self._by_id]:
            del gone[feed_id]
            self._rows.settle(feed_id)
        dropping = {feed_id: row.seq for feed_id, row in gone.items() if row is not None}
        absent = [] if keep_absent else [feed_id for feed_id, row in gone.items() if row is None]
        final = [feed_id for feed_id, seq in dropping.items() if seq <= partition.stable_seq]
        if whole and self._has_whole_list():
            final += absent
        self.awaits_drops = True  # even if one of these fails
        if most is not None and len(final) > most - len(created):
            return [self.drop(feed_id, journal) for feed_id in final[: most - len(created)]], created
        dropped = [self.drop(feed_id, journal) for feed_id in final]
        self.has_more = False
        self.awaits_drops = len(final) < len(dropping) + len(absent) or bool(self.returning)
        self._reconciled = partition.rollbacks, partition.high_seq
        return dropped, created

    def _is_listed(self, feed: Feed, seq: int, creation: bytes) -> None:
        """Makes ``feed`` as its row of ``_feeds`` says, which has this seq."""
        if feed.partitions[0].listed_seq != seq:
            listed, floors = settings_of_creation(creation)
            self.change(feed, as_listed(feed.info, listed), floors)
        _listed(feed, seq)
        self._by_name[feed.info.name] = feed
        self._rows.settle(feed.info.feed_id)

    def _has_whole_list(self) -> bool:
        """Returns whether a feed without a row is to be dropped, if ``_feeds`` has all of its leader's rows."""
        partition = self.system.partitions[0]
        if partition.stable_seq < partition.high_seq:
            return False
        # Before the leader has reported its seqs, it may have more rows.
        is_behind = not partition.knows_leader_seqs or partition.high_seq < partition.leader_durable_seq
        return partition.state == "leader" or not is_behind

    def lists_through(self, seq: int) -> bool:
        """Returns whether the feeds were reconciled with the rows of the present leader up to ``seq`` at least."""
        rollbacks, reconciled_seq = self._reconciled
        return rollbacks == self.system.partitions[0].rollbacks and reconciled_seq >= seq

    def made_seq(self) -> int:
        """Returns a seq of ``_feeds`` up to which each listed feed was made; SEQ_MAX if all were.

        A follower has the rows before it makes their feeds. If rows cannot be read, it is 0. May read segments.
        """
        try:
            rows = self._rows.read()
        except SegmentDamaged:
            return 0
        unmade = [id for id in self._rows.unsettled if id not in self._by_id and id not in self.drops]
        seqs = [row.seq for row in map(rows.get, unmade) if row is not None and row.creation is not None]
        return min(seqs) - 1 if seqs else SEQ_MAX

    def forget_reconciled(self) -> None:
        """Notes that another leader is followed, whose rows of ``_feeds`` may be other ones."""
        self._reconciled = (0, -1)

    def unlisted(self) -> dict[bytes, bytes]:
        """Returns the creations of feeds without a row in ``_feeds``: they are older than ``_feeds``."""
        rows = self._rows.read()
        feeds = (feed for feed in self if feed.info.feed_id not in rows)
        return {feed.info.feed_id: creation_to_bytes(feed.info, feed.first_branch) for feed in feeds}

    def __contains__(self, feed_id: bytes) -> bool:
        return feed_id in self._by_id

    def drop(self, feed_id: bytes, journal: Journal) -> Feed:
        """Drops a feed that ``_feeds`` has as dropped, or does not list. Raises UnknownFeed.

        If the journal takes no record, the feed is dropped all the same, as the next start would do. The record follows
        by ``tell_drop``, before any of the feed's files is removed.
        """
        feed = self.of_id(feed_id)
        place = None
        with contextlib.suppress(NoSpace, NotDurable, Overloaded):
            place = journal.append(RecordKind.FEED_DROPPED, feed_id, 0, b"")
        self.dropped(feed, place)
        return feed

    def tell_drop(self, feed_id: bytes, journal: Journal) -> Drop:
        """Writes the record of a drop that ``drop`` could not write. Raises NoSpace, JournalFailed: call it again."""
        place = journal.append(RecordKind.FEED_DROPPED, feed_id, 0, b"")
        self.drops[feed_id] = self.drops[feed_id]._replace(place=place)
        return self.drops[feed_id]

    def begun_drop(self, feed_id: bytes) -> None:
        """Notes that a dropped feed's directory is marked, as ``ManifestStore.begin_drop`` does."""
        self.drops[feed_id] = self.drops[feed_id]._replace(is_marked=True)

    def removed(self, feed_id: bytes) -> None:
        """Notes that all files of a dropped feed are gone. A feed that is listed again may be created now."""
        self.drops.pop(feed_id, None)
        if feed_id in self.returning:
            self._on_removed()

    def dropped(self, feed: Feed, place: int | None) -> None:
        """Removes a dropped feed; its files are removed later. ``place``: the lsn of the journal's record."""
        self._remove(feed)
        self.creations.pop(feed.info.feed_id, None)
        self.drops[feed.info.feed_id] = Drop(place, tuple(feed.partitions))
        for partition in feed.partitions:
            partition.drop()


def _nothing(feed: Feed) -> None:
    """Until the owner sets a callback."""


def _shown(setting: object) -> str:
    return "not set" if setting is None else str(setting)


def _listed(feed: Feed, seq: int) -> None:
    for partition in feed.partitions:
        partition.list_at(seq)
