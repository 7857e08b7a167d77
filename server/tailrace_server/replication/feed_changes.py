"""Creates and drops feeds while a node runs, and makes a follower's feeds equal to its leader's.

A feed is dropped by its row of ``_feeds`` (feeds/feed_rows.py). The steps after that row (feeds/catalog.py) cannot fail
any more; after a crash ``reconcile`` does them. A feed is created by the journal's record, and its row follows. If the
row fails, the feed is dropped again; after a crash in between, the next start lists it. On a follower the row comes
first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from tailrace.errors import Forbidden, NotLeader, Overloaded, TailraceError
from tailrace.model import Level
from tailrace_server.feeds.feed import (
    SYSTEM_FEED_ID,
    SYSTEM_FEED_NAME,
    Feed,
    check_settings,
    creation_to_bytes,
    info_of_request,
)
from tailrace_server.feeds.feed_settings import changed, check_level, floors_after
from tailrace_server.partition.branching import begin_branch
from tailrace_server.replication.role import Role

if TYPE_CHECKING:
    from tailrace_server.config import Config
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.leaderships import Leaderships
    from tailrace_server.upkeep.storage import Storage

log = logging.getLogger("tailrace.server")

# Takes the feeds that were dropped, and those that were created.
FeedsChanged: TypeAlias = Callable[[Sequence[Feed], Sequence[Feed]], None]

# The feeds that are made or dropped in one turn of the loop: about 5 ms of the processor.
CHANGES_AT_ONCE = 32
# A leader has to hear from a majority within this multiple of the time-out for short questions.
_CONFIRMED_TIMEOUTS = 2


class FeedChanges:
    """The changes of one node's feeds. Rows of ``_feeds`` that may still be lost take effect once they cannot be."""

    def __init__(self, config: Config, storage: Storage, leaderships: Leaderships) -> None:
        # set by the owner; called when a feed was dropped, and must not be used any more
        self.on_gone: Callable[[Feed], None] = _nothing
        # set by the owner; called when the replication mode of a feed has changed
        self.on_mode_changed: Callable[[Feed], None] = _nothing
        self._limits = config.limits
        self._replication = config.replication
        self._host = storage.host
        self._feeds = storage.feeds
        self._storage = storage
        self._leaderships = leaderships
        self._is_whole = True  # the ``whole`` of the last call of ``reconcile``
        self._subscribers: dict[FeedsChanged, None] = {}
        self._new: list[Feed] = []  # the feeds that were created, and of which the subscribers have not heard
        self._feeds.when_created(self._adopt)
        self._feeds.when_removed(self._settled)
        self._feeds.when_switched(lambda feed: self.on_mode_changed(feed))
        for level in (Level.DISK, Level.QUORUM):
            self._feeds.system.partitions[0].watchers.watch(level, self._settled)

    def create(self, value: dict[str, Any]) -> Feed:
        """Creates the feed of a CREATE_FEED, or finds it.

        Raises FeedExists, Overloaded (also while a feed of this name is being dropped), NoSpace, NotDurable, Forbidden
        (the feed cannot have this level).
        """
        info = info_of_request(value, self._limits.partitions_max)
        if self._feeds.awaits_drops:  # of an earlier leader: those feeds are not the ones that are asked for
            raise Overloaded("feeds are being dropped: ask again")
        feed = self._feeds.existing(info, exist_ok=bool(value.get("exist_ok", True)), asked=value)
        if feed is not None:
            return feed
        check_level(info, in_set=self._leaderships.system.in_set)
        self._feeds.check_room(self._limits.feeds_max)
        branch = self._host.randomness.token(16)
        try:
            feed = self._feeds.create(info, self._storage.journal, branch, self._limits.feeds_max)
            for partition in feed.partitions:
                if self._leaderships.of_partition(partition).group.lists_feeds:
                    self._begin_branch(partition)
            self._list(info.feed_id, creation_to_bytes(info, branch))
        except TailraceError:
            # Nothing of the feed is left, unless the journal has no room for its drop until the node stops: then it
            # comes back empty.
            if info.feed_id in self._feeds:
                self.on_gone(self._feeds.drop(info.feed_id, self._storage.journal))
            raise
        self._feeds.listed(feed)
        self._changed([])
        return feed

    def set(self, feed_id: bytes, changes: dict[str, Any]) -> Feed:
        """Changes settings of a feed. Its rows stay. With another mode the streams of its replicas begin anew.

        A failover may lose the change, as it may lose a creation; the answer waits for a majority. Raises Forbidden,
        UnknownFeed, Overloaded (the feed is being dropped), TailraceError (a value is wrong), NoSpace, NotDurable; the
        feed is unchanged then.
        """
        if feed_id == SYSTEM_FEED_ID:
            raise Forbidden(f"{SYSTEM_FEED_NAME} lists the feeds: its settings cannot be changed")
        feed = self._feeds.of_id(feed_id)
        if self._feeds.is_dropping(feed):
            raise Overloaded(f"feed {feed.info.name!r} is being dropped, which may still be lost: ask again")
        info = changed(feed.info, changes)
        check_settings(info)
        # A node that has left its set may have a level that it cannot give: other settings can be changed all the same.
        check_level(info, in_set="level" not in changes or self._leaderships.system.in_set)
        if info != feed.info:
            floors = floors_after(feed.floors, feed.info, info, self._host.clock.wall_us())
            self._list(feed_id, creation_to_bytes(info, feed.first_branch, floors))
            self._feeds.change(feed, info, floors)
            self._feeds.listed(feed)
            log.info("feed %s: %s", info.name, ", ".join(f"{name} is {getattr(info, name)}" for name in changes))
        return feed

    def drop(self, feed_id: bytes) -> None:
        """Drops a feed and ends its streams. A feed that is gone already is no error: the request may come again.

        In a set the feed exists until a majority has its drop. A failover may lose the drop, and this node has
        acknowledged the feed's rows. Raises Forbidden, NoSpace, NotDurable; the feed is unchanged then.
        """
        if feed_id == SYSTEM_FEED_ID:
            raise Forbidden(f"{SYSTEM_FEED_NAME} lists the feeds: it cannot be dropped")
        if feed_id not in self._feeds:
            return
        if not self._leaderships.system.in_set:
            self._list(feed_id, None)
            feed = self._feeds.drop(feed_id, self._storage.journal)
            self.on_gone(feed)
            self._changed([feed])
        elif not self._feeds.is_dropping(self._feeds.of_id(feed_id)):
            self._list(feed_id, None)
            self._feeds.awaits_drops = True

    def reconcile(self, *, whole: bool = True, most: int | None = None) -> tuple[list[Feed], list[Feed]]:
        """Makes the feeds equal to ``_feeds``, as `Catalog.reconcile`, and ends the streams of dropped feeds.

        After ``most`` changes it ends; `Catalog.has_more` tells then whether to call it again.

        A follower calls it after each complete snapshot of ``_feeds``, a new leader before it leads. Drops that wait
        for a majority, or for the leader's disk, take effect by themselves later.
        """
        dropped, created = self._feeds.reconcile(self._storage.journal, self._limits.feeds_max, whole=whole, most=most)
        self._is_whole = whole
        for feed in dropped:
            self.on_gone(feed)
        self._changed(dropped)
        return dropped, created

    def subscribe(self, changed: FeedsChanged) -> None:
        """Calls ``changed`` with the feeds that were dropped and those that were created, until ``unsubscribe``."""
        self._subscribers[changed] = None

    def unsubscribe(self, changed: FeedsChanged) -> None:
        """Ends ``subscribe``."""
        self._subscribers.pop(changed, None)

    def _changed(self, dropped: Sequence[Feed]) -> None:
        """Tells the subscribers of dropped feeds, and of those that were created since the last call."""
        created = [feed for feed in self._new if self._feeds.find(feed.info.feed_id) is feed]
        self._new.clear()
        if dropped or created:
            for changed in list(self._subscribers):
                changed(dropped, created)

    def _adopt(self, feed: Feed) -> None:
        """Gives the partitions of a new feed the roles of their groups. Raises NoSpace, NotDurable."""
        self._new.append(feed)
        for partition in feed.partitions:
            self._leaderships.adopt(partition)
        for partition in feed.partitions:
            leadership = self._leaderships.of_partition(partition)
            if leadership.group.lists_feeds:
                continue  # `create` does it, or the node before it leads
            try:
                self._begin_branch(partition)
            except TailraceError:
                leadership.resign()  # it must not take writes on a branch that an earlier leader may have written to
                raise

    def _begin_branch(self, partition: Partition) -> None:
        """Begins a branch of the leader's term in a new partition, if one is due. Raises NoSpace, NotDurable."""
        leadership, host = self._leaderships.of_partition(partition), self._host
        if leadership.branches_new_feeds:
            branch, now = host.randomness.token(16), host.clock.monotonic()
            begin_branch(partition, branch, self._storage.journal, leadership.term, now=now)

    async def confirm_known(self) -> None:
        """Returns once it is sure that this node knows all feeds that there were at this call.

        A leader asks a majority whether it still leads. A follower asks its leader how far ``_feeds`` has come, and has
        to have taken over all of that. Raises NotLeader, and the leader's error; OSError.
        """
        leadership = self._leaderships.system
        if leadership.role is Role.LEADER:
            timeout_s = _CONFIRMED_TIMEOUTS * self._replication.ask_timeout_s
            with trio.move_on_after(timeout_s) as scope:
                await leadership.confirmed()
            if scope.cancelled_caught:
                raise NotLeader(f"no majority has confirmed within {timeout_s:g} s that this node leads")
            return
        accepted = await leadership.leaders_seqs([SYSTEM_FEED_ID])
        if leadership.role is not Role.FOLLOWER or not self._feeds.lists_through(accepted(SYSTEM_FEED_ID, 0)):
            raise NotLeader(
                "this node has not heard of all feeds yet: ask again", leader=leadership.leader_address or None
            )

    def seqs(self) -> list[tuple[Partition, int]]:
        """Returns how far ``_feeds`` has come: its partition and high seq."""
        return [(partition, partition.high_seq) for partition in self._feeds.system.partitions]

    def _list(self, feed_id: bytes, creation: bytes | None) -> None:
        """Writes a row of ``_feeds``."""
        [partition], clock = self._feeds.system.partitions, self._host.clock
        self._feeds.write_rows(
            {feed_id: creation}, self._storage.journal, now_us=clock.wall_us(), now=clock.monotonic()
        )
        self._storage.committer.note(partition)
        self._storage.flusher.note(partition)

    def _settled(self) -> None:
        """Makes drops take effect that cannot be lost any more. The caller must not fail by their errors."""
        if not self._feeds.awaits_drops:
            return
        try:
            self.reconcile(whole=self._is_whole)
        except TailraceError as error:
            log.error("what _feeds says is not done yet: %s", error)


def _nothing(feed: Feed) -> None:
    """Until the owner sets a callback."""
