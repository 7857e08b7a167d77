"""Fetches the rows that a candidate lacks from the members that have promised, before it leads.

The highest (term, seq) of the voters who promised decides the history of each partition. The list of feeds is fetched
first, then the feeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.errors import NotLeader, TailraceError, UnknownFeed
from tailrace.link.address import parse_address
from tailrace.wire.replica_messages import Replica
from tailrace_server.replication.debts import FEEDS
from tailrace_server.replication.feed_changes import CHANGES_AT_ONCE
from tailrace_server.replication.gathered_promises import GatheredPromises
from tailrace_server.replication.in_turns import InTurns
from tailrace_server.replication.peers import standings_of
from tailrace_server.replication.pulled_node import PulledNode
from tailrace_server.replication.readable_copies import PUT_BACK
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.replication.standings import Best, PartitionId, Standings, choose, readable

if TYPE_CHECKING:
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.replication.member import Member

# A member whose reads hang answers signs of life all the same. If nothing has come for so long, another copy is chosen.
STALLED_SECONDS = 15.0


class MissingRows:
    """The fetch of one try to lead. ``fetch`` may be called once."""

    def __init__(self, member: Member, promises: GatheredPromises, say: Callable[[str], None], *, force: bool) -> None:
        """``say`` reports a step. With ``force`` the node goes on without the rows that no member can give."""
        self.unpaid: list[str] = []  # debts that no promising member can pay
        self.lost: dict[PartitionId, str] = {}  # rows of copies that their members cannot read
        self._member = member
        self._node = member.node
        self._leadership = member.leadership
        self._promises = promises
        self._say = say
        self._force = force
        self._cannot_read: dict[tuple[str, PartitionId], str] = {}  # why a copy could not be read by its member

    async def fetch(self) -> Standings:
        """Brings this node to the highest standing of each partition, durably. Returns the standings reached.

        Raises NotLeader if rows are missing that no member can give, unless forced.
        """
        node, group = self._node, self._leadership.group
        if group.lists_feeds:
            await self._bring([FEEDS])
            node.feed_changes.reconcile(most=CHANGES_AT_ONCE)
            while node.feeds.has_more:
                await trio.lowlevel.checkpoint()
                node.feed_changes.reconcile(most=CHANGES_AT_ONCE)
        else:
            await self._hear_of_feeds()
        partition_ids = [PartitionId(p.feed_id, p.id) for p in group.unsorted()]
        await self._bring([partition_id for partition_id in partition_ids if partition_id != FEEDS])
        turns = InTurns()
        for partition in list(group.unsorted()):
            await turns.look()
            await node.storage.installer.settle(partition)
        await node.storage.all_durable()
        self._promises.require_term()
        own = standings_of(group.unsorted())
        for partition_id, best in choose(own, self._others, own.keys() - self._closed()).items():
            if best.address:
                raise NotLeader(
                    f"{partition_id} stands at {tuple(own[partition_id])}, and "
                    f"{best.address} has {tuple(best.standing)}: it was not fetched"
                )
        return own

    async def _hear_of_feeds(self) -> None:
        """Returns once this node has all feeds of which a promising member has rows at quorum.

        Raises NotLeader, unless forced, if this node lacks such a feed and the leader of ``_feeds`` does not say that
        the feed was dropped. To lead without it would lose its rows.
        """
        feeds = self._node.feeds
        found = {id: standing for standings in self._others.values() for id, standing in standings.items()}
        unknown = [id for id, standing in found.items() if standing.seq and id.feed_id not in feeds]
        if not unknown:
            return
        try:
            await self._node.feed_changes.confirm_known()
        except (TailraceError, OSError) as error:
            self.lost |= {
                id: f"{id}: another member has rows, and this node has not heard of the feed ({error})"
                for id in unknown
                if id.feed_id not in feeds
            }
            if self.lost and not self._force:
                raise NotLeader(f"refused: {next(iter(self.lost.values()))}. Try again later") from error

    @property
    def _others(self) -> Mapping[str, Standings]:
        """The copies that the others can read, as far as this node knows."""
        return readable(self._told, self._cannot_read)

    @property
    def _told(self) -> dict[str, Standings]:
        return {name: promised.standings for name, promised in self._promises.promised.items()}

    def _closed(self) -> set[PartitionId]:
        """Returns the partitions that take no rows here, since a segment could not be opened at the start."""
        partitions = self._leadership.group.unsorted()
        return {PartitionId(p.feed_id, p.id) for p in partitions if p.damage is not None}

    async def _bring(self, partition_ids: Iterable[PartitionId]) -> None:
        """Brings this node to the highest standing of ``partition_ids`` that can be read.

        Only a fetch shows whether a copy can be read. If it cannot, the next best one is chosen.
        """
        partition_ids = list(partition_ids)
        while True:
            chosen = choose(standings_of(self._leadership.group.unsorted()), self._others, partition_ids)
            self._require_told(chosen)
            self._require_read(chosen)
            self._require_paid(chosen)
            for partition_id in self._closed() & chosen.keys():
                del chosen[partition_id]
            if await self._fetch(chosen):
                return

    def _require_told(self, chosen: Mapping[PartitionId, Best]) -> None:
        """Raises NotLeader if this node has no vote, and holds more than the majority that has promised.

        The last leader may: it has written these rows for the set.
        """
        if self._member.local.votes or self._promises.leads_again or not self._promises.has_majority():
            return
        told = choose({}, self._told, chosen)
        for partition_id, best in chosen.items():
            if best.standing > told[partition_id].standing:
                held = tuple(told[partition_id].standing)
                raise NotLeader(
                    f"refused: this node has no vote, and holds {tuple(best.standing)} (term, seq) of "
                    f"{partition_id}, the voters {held}: promote a "
                    "member that has a vote"
                )

    def _require_read(self, chosen: Mapping[PartitionId, Best]) -> None:
        """Raises NotLeader if no readable copy has as much as an unreadable one, unless forced."""
        closed, told = self._closed(), self._told
        for (address, partition_id), why in self._cannot_read.items():
            if partition_id not in chosen or told[address][partition_id] <= chosen[partition_id].standing:
                continue
            self.lost[partition_id] = (
                f"{self._named(partition_id)}: {address} has it up to seq {told[address][partition_id].seq}, and "
                f"cannot read it ({why}); it goes on from seq {chosen[partition_id].standing.seq}"
            )
        for partition_id in closed & chosen.keys():
            best = chosen[partition_id]
            if best.address:
                self.lost[partition_id] = (
                    f"{self._named(partition_id)}: {best.address} has it up to seq {best.standing.seq}, and this node, "
                    "which cannot read its own copy, cannot fetch that; promote a member whose copy is good"
                )
        if self.lost and not self._force:
            raise NotLeader(
                f"refused: {next(iter(self.lost.values()))}. Stop that node, and {PUT_BACK}; --force leads all the same"
            )

    def _named(self, partition_id: PartitionId) -> str:
        feed = self._node.feeds.of_id(partition_id.feed_id)
        return f"partition {partition_id.partition} of feed {feed.info.name}"

    def _require_paid(self, chosen: Mapping[PartitionId, Best]) -> None:
        """Raises NotLeader if a promising member owes rows that none of them has, unless forced."""
        promised = self._promises.promised
        owed = {"this node": self._member.local.file.now.owes} | {name: p.owes for name, p in promised.items()}
        for name, debts in owed.items():
            for partition_id, standing in debts:
                if partition_id in chosen and chosen[partition_id].standing < standing:
                    unpaid = (
                        f"{name} had acknowledged {partition_id} up to seq {standing.seq}, and no node here has that: "
                        f"{name} has to get it again from one that does"
                    )
                    if unpaid not in self.unpaid:  # each choice asks again
                        self.unpaid.append(unpaid)
        if self.unpaid and not self._force:
            silent = ", ".join(sorted(self._promises.silent)) or "none"
            raise NotLeader(f"refused: {self.unpaid[0]}. Without: {silent}. --force leads all the same")

    async def _fetch(self, chosen: dict[PartitionId, Best]) -> bool:
        """Fetches the rows that others have more. Returns False if ``_cannot_read`` has a copy more than before."""
        has_all = True
        until: dict[tuple[str, bytes], dict[int, int]] = {}
        for partition_id, best in chosen.items():
            if best.address:
                until.setdefault((best.address, partition_id.feed_id), {})[partition_id.partition] = best.standing.seq
        for address in dict.fromkeys(address for address, _ in until):
            wanted = {self._node.feeds.of_id(id): seqs for (other, id), seqs in until.items() if other == address}
            has_all = await self._fetch_from(address, wanted) and has_all
        return has_all

    async def _fetch_from(self, address: str, wanted: Mapping[Feed, Mapping[int, int]]) -> bool:
        """Fetches partitions up to their seqs from one member, all feeds on one connection. Returns as `_fetch`."""
        pulled = PulledNode(self._node, self._leadership, parse_address(address), self._replica(), state="follower")
        pullers: list[ReplicaPuller] = []
        left, done = len(wanted), trio.Event()

        def made(feed: Feed, seqs: Mapping[int, int]) -> ReplicaPuller:
            pullers.append(ReplicaPuller(self._node, self._leadership, feed, pulled, until=seqs, on_end=ended))
            return pullers[-1]

        def ended(error: UnknownFeed | None) -> None:
            nonlocal left
            if error is not None:
                raise error
            left -= 1
            if not left:
                done.set()

        async def pull() -> None:
            self._say(f"fetches {sum(map(len, wanted.values()))} partitions of {_feeds(wanted)} from {address}")
            for feed, seqs in wanted.items():
                pulled.begin(partial(made, feed, seqs))
            await _all_come(done, lambda: (self._node.storage.received.nbytes, *(p.handled for p in pullers)))

        self._member.pulls(pulled)
        await pulled.run(pull)
        self._promises.require_term()
        await self._node.storage.all_durable()
        failures = [(puller.feed, number, failed) for puller in pullers for number, failed in puller.failed.items()]
        for feed, number, failed in failures:
            self._cannot_read[address, PartitionId(feed.info.feed_id, number)] = failed.message
            self._say(f"{address} cannot read partition {number} of feed {feed.info.name}: {failed.message}")
        if not done.is_set():
            self._note_stalled(address, wanted)
        return not failures and done.is_set()

    def _note_stalled(self, address: str, wanted: Mapping[Feed, Mapping[int, int]]) -> None:
        """Counts the partitions that have not come as ones that the member at ``address`` cannot read."""
        why = f"nothing has come from it for {STALLED_SECONDS:g} s"
        self._say(f"fetches no more from {address}: {why}")
        for feed, seqs in wanted.items():
            for number, seq in seqs.items():
                if feed.partitions[number].high_seq < seq:
                    self._cannot_read.setdefault((address, PartitionId(feed.info.feed_id, number)), why)

    def _replica(self) -> Replica:
        identity, local = self._node.identity, self._member.local
        return Replica(
            *(identity.placement_id, self._promises.term, local.name, local.votes, identity.cluster_id),
            start=local.start_token,
        )


def _feeds(wanted: Collection[Feed]) -> str:
    """Returns the name of the only feed, or how many feeds there are: thousands of names would fill the log."""
    return f"{len(wanted)} feeds" if len(wanted) > 1 else f"feed {next(iter(wanted)).info.name}"


async def _all_come(done: trio.Event, progress: Callable[[], object]) -> None:
    """Returns once ``done`` is set, or ``progress`` has returned the same for STALLED_SECONDS."""
    before: object = None
    while not done.is_set() and (now := progress()) != before:
        before = now
        with trio.move_on_after(STALLED_SECONDS):
            await done.wait()
