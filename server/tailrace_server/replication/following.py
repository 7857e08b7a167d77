"""Follows the leader of a group: on one connection, a puller for each feed of which the group has partitions.

    the group with _feeds    _feeds ── its first complete snapshot ──> reconcile ──┐
    any other group          the feeds that this node has ─────────────────────────┴──> a puller for each feed

In either case `FeedChanges` tells of later changes: a feed's puller begins when the feed is created, and ends when the
feed is dropped. A member of another group may have heard of a feed before its leader, or the other way round.

It ends with the connection; then the member looks for a leader again. A member without a vote (its disk
was replaced, or is an older copy) gets its vote here. It has to acknowledge all rows that a leader, confirmed by a
majority, held when it came.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

import trio

from tailrace.consuming.events import StreamFailed
from tailrace.errors import Retryable, TailraceError, UnknownFeed
from tailrace.link.address import Address
from tailrace.model import EndReason
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, Feed
from tailrace_server.replication.debts import Debt, with_debt
from tailrace_server.replication.feed_changes import CHANGES_AT_ONCE
from tailrace_server.replication.in_turns import InTurns
from tailrace_server.replication.lineage import TOKEN_BYTES
from tailrace_server.replication.peers import ask, seqs_from_json
from tailrace_server.replication.pulled_node import PulledNode
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.replication.standings import PartitionId, Standing
from tailrace_server.replication.voters import Voters, voters_field

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_member import LocalMember
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")

# The time-outs that a confirmed answer takes: the leader needs one more round trip to a majority.
_CONFIRMED_TIMEOUTS = 2


class VoteGained(TailraceError):
    """This node votes from now on. It opens new streams to tell its leader."""


class Following:
    """The following of one leader in one term. ``run`` may be called once."""

    def __init__(
        self,
        node: LocalNode,
        leadership: Leadership,
        local: LocalMember,
        address: Address,
        replica: Replica,
        learn: Callable[[Voters], None],
    ) -> None:
        """``learn`` takes the record of the voters that the leader has told. OSError."""
        self.address = address
        self._node = node
        self._leadership = leadership
        self._local = local
        self._learn = learn
        self._replica = replica
        self._group = leadership.group
        self._pulled = PulledNode(node, leadership, address, replica)
        self._pullers: dict[bytes, ReplicaPuller] = {}
        self._to_begin: dict[bytes, Feed] = {}  # the feeds of which the puller is to be made
        self._knows_feeds = not self._group.lists_feeds  # whether ``_feeds`` has had a complete snapshot
        self._is_reconciling = False  # whether a task makes this node's feeds equal to ``_feeds``
        self._more = trio.Event()  # set when this node holds more, or the feeds have changed

    @property
    def ended(self) -> trio.Event:
        """Set once no step is under way."""
        return self._pulled.ended

    @property
    def is_stopped(self) -> bool:
        """Whether nothing is taken or acknowledged any more. With thousands of feeds ``ended`` comes later."""
        return self._pulled.is_stopped

    def stop(self) -> None:
        """Stops taking and acknowledging rows. ``ended`` is set once no step is under way."""
        self._pulled.stop()

    async def run(self) -> None:
        """Follows until stopped. Raises the error that ends it otherwise (TailraceError, OSError)."""
        if self._group.lists_feeds:
            self._node.feeds.forget_reconciled()
        try:
            await self._pulled.run(self._begin_all)
        finally:
            self._node.feed_changes.unsubscribe(self._feeds_changed)

    async def discard(self) -> None:
        """Lets go of what was followed after ``run``, a few feeds in a turn (`PulledNode.discard`)."""
        self._to_begin.clear()
        await self._pulled.discard()
        self._pullers.clear()

    def failing(self) -> list[tuple[Feed, StreamFailed]]:
        """Returns the partitions that do not follow at present, each with its feed and the reason."""
        return [(puller.feed, failed) for puller in self._pullers.values() for failed in puller.failed.values()]

    def copy_unreadable(self) -> None:
        """Copies the partitions anew that this node cannot read. Without any damage this costs nothing."""
        if self._node.storage.damages:
            for puller in self._pullers.values():
                puller.copy_unreadable()

    async def _begin_all(self) -> None:
        self._node.feed_changes.subscribe(self._feeds_changed)
        if self._group.lists_feeds:
            self._begin(self._node.feeds.system)
        else:
            self._pulled.start(self._follow_feeds)
        if not self._replica.votes and self._leadership.in_set:
            self._pulled.start(self._gain_vote)
        await trio.sleep_forever()

    def _begin(self, feed: Feed, *, at_once: bool = False) -> None:
        """Follows a feed soon; ``at_once``: before all others that are to be followed."""
        self._to_begin[feed.info.feed_id] = feed
        self._pulled.begin(partial(self._puller_of, feed), first=at_once)

    def begin_first(self, feed_ids: Iterable[bytes]) -> None:
        """Follows these feeds before the others that are not followed yet, if this node has them.

        The leader tells them again. So those of which this node has not heard yet are left out.
        """
        if not (self._knows_feeds and self._pulled.takes_tasks):
            return
        for feed_id in feed_ids:
            feed = self._node.feeds.find(feed_id)
            if feed is not None and feed_id not in self._pullers and self._group.of_feed(feed):
                self._begin(feed, at_once=True)

    def _puller_of(self, feed: Feed) -> ReplicaPuller | None:
        """Makes the puller of a feed; None if the feed was dropped meanwhile."""
        if self._to_begin.get(feed.info.feed_id) is not feed:
            return None
        del self._to_begin[feed.info.feed_id]
        self._pullers[feed.info.feed_id] = puller = ReplicaPuller(
            self._node,
            self._leadership,
            feed,
            self._pulled,
            on_snapshot=self._feeds_told if feed is self._node.feeds.system else None,
            on_acknowledged=None if self._replica.votes else self._has_more,
            on_end=lambda error: self._is_unknown(puller, error),
        )
        return puller

    def _is_unknown(self, puller: ReplicaPuller, error: UnknownFeed | None) -> None:
        """The leader does not know a feed. It was dropped, and perhaps made anew: ``_feeds`` is about to say so.

        Otherwise it is tried again when the leader is followed anew; in a group without ``_feeds`` soon, since its
        leader may not know the feed yet.
        """
        assert error is not None, "a feed is followed without an end"
        feed = puller.feed
        if feed is self._node.feeds.system:
            raise error
        log.info("feed %s is not followed: %s", feed.info.name, error)
        if not self._group.lists_feeds:
            self._pulled.start(partial(self._try_again, puller))

    async def _try_again(self, puller: ReplicaPuller) -> None:
        await trio.sleep(self._node.config.replication.poll_s)
        if self._pullers.get(puller.feed.info.feed_id) is puller and self._pulled.takes_tasks:
            self._begin(puller.feed)

    def _feeds_told(self) -> None:
        """Follows the feeds of a complete snapshot of ``_feeds``. Later ones cost only what they have changed."""
        self._reconcile_some()
        if self._node.feeds.has_more and not self._is_reconciling:
            self._is_reconciling = True
            self._pulled.start(self._reconcile_rest)

    async def _reconcile_rest(self) -> None:
        """Makes and drops the rest of thousands of feeds, a few in a turn."""
        try:
            while self._node.feeds.has_more:
                await trio.lowlevel.checkpoint()
                self._reconcile_some()
        finally:
            self._is_reconciling = False

    def _reconcile_some(self) -> None:
        self._node.feed_changes.reconcile(most=CHANGES_AT_ONCE)
        if not self._knows_feeds and not self._node.feeds.has_more:
            self._knows_feeds = True
            self._pulled.start(self._follow_feeds)
        self._has_more()

    async def _follow_feeds(self) -> None:
        """Begins to follow the feeds of the group that this node has, a few in a turn.

        `_feeds_changed` tells of those that are created or dropped meanwhile.
        """
        feeds = self._node.feeds
        turns = InTurns()
        for feed in await self._newest_first():
            await turns.look()
            if feeds.find(feed.info.feed_id) is feed:
                self._feeds_changed([], [feed])

    async def _newest_first(self) -> list[Feed]:
        """Returns the feeds but ``_feeds``, those with the newest rows first.

        Writers at level quorum wait until their feeds are followed. Of thousands of feeds few have writers, and most of
        these have written before. The leader tells of the others (`begin_first`).
        """
        found: list[tuple[int, Feed]] = []
        turns = InTurns()
        for feed in self._node.feeds.feeds():
            partitions = self._group.of_feed(feed)
            await turns.look(len(partitions))
            if partitions and feed is not self._node.feeds.system:
                found.append((max(partition.last_timestamp for partition in partitions), feed))
        found.sort(key=itemgetter(0), reverse=True)
        return [feed for _, feed in found]

    def _feeds_changed(self, dropped: Sequence[Feed], created: Sequence[Feed]) -> None:
        """Begins to follow created feeds of the group that are not followed yet, and ends with those that were dropped.

        Before the first complete snapshot of ``_feeds`` it does nothing: that is about all feeds.
        """
        if not self._knows_feeds:
            return
        for feed in dropped:
            self._to_begin.pop(feed.info.feed_id, None)
            puller = self._pullers.pop(feed.info.feed_id, None)
            if puller is not None:
                self._pulled.end(puller)
        if not self._pulled.takes_tasks:  # a task has failed, and no other one may begin
            return
        self._has_more()
        for feed in created:
            id = feed.info.feed_id
            if id not in self._pullers and id not in self._to_begin and self._group.of_feed(feed):
                self._begin(feed)

    # The vote

    def _has_more(self) -> None:
        self._more.set()

    def voters_changed(self) -> None:
        """Takes notice of a later record of the voters, in which this node has no seat yet."""
        self._more.set()

    async def _gain_vote(self) -> None:
        """Catches up with the leader, and tells it so, until the leader gives this node its seat.

        It does so anew for each record: a seat takes all rows that the leader had when it made the record. In epoch 0
        this node votes at once, and so does an older copy of a directory that has a seat.
        """
        file = self._local.file
        while True:
            record, debts = await self._catch_up()
            if not self._pulled.takes_tasks:
                return
            now, is_older = file.now, file.now.older is not None
            if not record.epoch:
                now = now.voting()
            file.store(now.caught_up(self._node.host.randomness.token(TOKEN_BYTES)).owing(debts))
            if self._local.votes:
                log.warning("this node has caught up with its set, and votes from now on%s", _told(is_older, debts))
                raise VoteGained("this node votes from now on")
            self._local.caught_up(record)
            log.info("this node has caught up as of %s, and waits for its seat%s", record, _told(is_older, debts))
            while not file.now.voters.is_later(record):
                self._more = trio.Event()
                await self._more.wait()

    async def _catch_up(self) -> tuple[Voters, tuple[Debt, ...]]:
        """Waits until this node holds all rows that the leader had when this began. Returns its record then, and debts.

        It does not wait for a partition that the leader cannot read. This node owes that one from then on, so by its
        promise only a node leads that has those rows.
        """
        wanted, record = await self._accepted_seqs()
        if not self._group.lists_feeds:
            await self._hear_of_feeds()
        while (unreadable := self._lacks(wanted)) is None:
            await self._come(wanted)
        debts = self._local.file.now.owes
        for debt in unreadable:
            debts = with_debt(debts, debt)
        return record, debts

    async def _accepted_seqs(self) -> tuple[dict[bytes, list[int]], Voters]:
        """Returns how far the leader has come, and the record by which it counts; of epoch 0, of an earlier version."""
        config = self._node.config.replication
        timeout_s = _CONFIRMED_TIMEOUTS * config.ask_timeout_s
        while True:
            try:
                cluster_id = self._node.identity.cluster_id.hex()
                value = {"feed_ids": [], "joining": True, "cluster_id": cluster_id}
                answer = await ask(self._node, self.address, Opcode.ACCEPTED_SEQS, value, timeout_s)
                what = "the answer to ACCEPTED_SEQS"
                record = voters_field(answer, what) or Voters()
                self._learn(record)
                return seqs_from_json(answer.get("seqs"), what), record
            except Retryable as error:
                log.info("no vote yet: %s", error)
            await trio.sleep(config.poll_s)

    async def _come(self, wanted: dict[bytes, list[int]]) -> None:
        """Waits for one feed of ``wanted`` after the other, so that the news of one is no look at all others."""
        for feed_id in wanted:
            while not self._lists_through(wanted) or self._owed(feed_id, wanted[feed_id]) is None:
                self._more = trio.Event()
                await self._more.wait()

    def _lacks(self, wanted: dict[bytes, list[int]]) -> list[Debt] | None:
        """Returns the debts for those of ``wanted`` that the leader cannot read; None while anything else is missing.

        The leader has a branch of its own term in each partition, so a copy with all of ``wanted`` is of that term. A
        feed counts as dropped only if this node has taken ``_feeds`` as far as the leader had it. Before that, the feed
        may be a new one. Partitions of other groups do not matter.
        """
        unreadable: list[Debt] = []
        if not self._lists_through(wanted):
            return None
        for feed_id, seqs in wanted.items():
            owed = self._owed(feed_id, seqs)
            if owed is None:
                return None
            unreadable += owed
        return unreadable

    def _owed(self, feed_id: bytes, seqs: Sequence[int]) -> list[Debt] | None:
        """Returns the debts for the partitions of one feed as `_lacks`; None while anything else is missing."""
        puller, owed = self._pullers.get(feed_id), list[Debt]()
        if puller is None and feed_id not in self._node.feeds:
            return owed  # dropped since
        for number, seq in enumerate(seqs):
            if not self._group.includes(feed_id, number):
                continue
            if puller is not None and puller.acknowledged.get(number, -1) >= seq:
                continue
            failed = None if puller is None else puller.failed.get(number)
            if failed is None or failed.reason not in (EndReason.DAMAGED, EndReason.ERROR):
                return None
            owed.append(Debt(PartitionId(feed_id, number), Standing(self._replica.term, seq)))
        return owed

    async def _hear_of_feeds(self) -> None:
        """Returns once this node has heard of all feeds that there were at this call.

        The group's leader has ``_feeds`` from another leader, perhaps from an earlier one, so its seq says nothing.
        """
        while True:
            try:
                await self._node.feed_changes.confirm_known()
                return
            except (TailraceError, OSError) as error:
                log.info("no vote yet: %s", error)
            await trio.sleep(self._node.config.replication.poll_s)

    def _lists_through(self, wanted: dict[bytes, list[int]]) -> bool:
        if not self._group.lists_feeds:
            return True  # ``_hear_of_feeds`` has seen to it
        return self._knows_feeds and self._node.feeds.lists_through(max(wanted.get(SYSTEM_FEED_ID, [0])))


def _told(is_older: bool, debts: tuple[Debt, ...]) -> str:
    """Returns the rest of the sentence that this node has caught up."""
    copy = "; its directory was an older copy" if is_older else ""
    return copy + (f"; it owes {len(debts)} partitions that the leader cannot read" if debts else "")
