"""How feeds are made and dropped while a node runs, and how a follower's become those of its leader.

A feed is dropped by its row of ``_feeds`` (``feed_rows.py``): what follows (``catalog.py``) cannot fail any more, and
after a crash is done by ``reconcile``. A feed is made by the journal's record, and its row follows: if that fails, the
feed is dropped again, and after a crash in between the next start lists it. On a follower the row comes first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tailrace.errors import Forbidden, Overloaded, TailraceError, UnknownFeed
from tailrace.model import Level
from tailrace_server.feed import SYSTEM_FEED_ID, SYSTEM_FEED_NAME, Feed, creation_to_bytes, info_of_request

if TYPE_CHECKING:
    from tailrace_server.node import Node

log = logging.getLogger("tailrace.server")


class FeedChanges:
    """Of one node. What ``_feeds`` says and could still be lost is done by itself once it cannot be."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_whole = True  # what ``_feeds`` said when ``reconcile`` was called last
        for level in (Level.DISK, Level.QUORUM):
            node.feeds.system.partitions[0].watch(level, self._settled)

    def create(self, value: dict[str, Any]) -> Feed:
        """Makes what a CREATE_FEED asks for, or finds it.

        Raises FeedExists, Overloaded (also while one of this name is being dropped), NoSpace, NotDurable.
        """
        node = self._node
        info = info_of_request(value, node.config.limits.partitions_max)
        if node.feeds.awaits_drops:  # of an earlier leader: what goes in a moment is not what is asked for
            raise Overloaded("feeds are being dropped: ask again")
        feed = node.feeds.existing(info, exist_ok=bool(value.get("exist_ok", True)), asked=value)
        if feed is not None:
            return feed
        node.feeds.check_room(node.config.limits.feeds_max)
        branch = node.host.randomness.token(16)
        feed = node.feeds.create(info, node.journal, branch, node.config.limits.feeds_max)
        try:
            self._list(info.feed_id, creation_to_bytes(info, branch))
        except TailraceError:
            # Nothing of it is left, unless there is no room to say so until the node stops: then it comes back empty.
            self._gone(node.feeds.drop(info.feed_id, node.journal))
            raise
        node.feeds.listed(feed)
        return feed

    def drop(self, feed_id: bytes) -> None:
        """Drops a feed and ends its streams; nothing where it is gone already, as when the request comes again.

        In a set it is there until a majority has it that it was dropped: a failover may lose that, and this node has
        acknowledged what the feed holds. Raises Forbidden, NoSpace, NotDurable: the feed is as it was.
        """
        node = self._node
        if feed_id == SYSTEM_FEED_ID:
            raise Forbidden(f"{SYSTEM_FEED_NAME} lists the feeds: it cannot be dropped")
        if feed_id not in node.feeds:
            return
        if not node.in_set:
            self._list(feed_id, None)
            self._gone(node.feeds.drop(feed_id, node.journal))
        elif not node.feeds.is_dropping(node.feeds.of_id(feed_id)):
            self._list(feed_id, None)
            node.feeds.awaits_drops = True

    def reconcile(self, *, whole: bool = True) -> tuple[list[Feed], list[Feed]]:
        """Makes the feeds equal to what ``_feeds`` says, as `Catalog.reconcile`, and ends the streams of dropped ones.

        For a follower, after each complete snapshot of ``_feeds``, and for whoever begins to lead. Drops that wait for
        a majority, or for the leader's disk, are done by themselves.
        """
        node = self._node
        dropped, created = node.feeds.reconcile(node.journal, node.config.limits.feeds_max, whole=whole)
        self._is_whole = whole
        for feed in dropped:
            self._gone(feed)
        for feed in created:
            for partition in feed.partitions:
                node.adopt(partition)
        return dropped, created

    def _list(self, feed_id: bytes, creation: bytes | None) -> None:
        """Writes a row of ``_feeds``."""
        node = self._node
        [partition] = node.feeds.system.partitions
        node.feeds.write_rows(
            {feed_id: creation}, node.journal, now_us=node.clock.wall_us(), now=node.clock.monotonic()
        )
        node.committer.note(partition)
        node.flusher.note(partition)

    def _gone(self, feed: Feed) -> None:
        """Forgets a feed that was dropped: its streams end, and what waits for it is told."""
        node = self._node
        for partition in feed.partitions:
            node.flusher.forget(partition)
            node.compactor.forget(partition)
            node.replicas.forget(partition)
            node.waiting.fail(UnknownFeed(f"feed {feed.info.name!r} was dropped"), partition)
        for connection in node.connections:
            connection.feed_dropped(feed)

    def _settled(self) -> None:
        """What ``_feeds`` says can be lost a little less. Whoever has told that must not fail by what follows."""
        if not self._node.feeds.awaits_drops:
            return
        try:
            self.reconcile(whole=self._is_whole)
        except TailraceError as error:
            log.error("what _feeds says is not done yet: %s", error)
