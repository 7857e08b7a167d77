"""This node as a member: the promises of its directory, and the state that it tells the others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tailrace import _version
from tailrace.link.address import Address, parse_address
from tailrace_server.config import Failover
from tailrace_server.replication.debts import Debt, unpaid, with_debt
from tailrace_server.replication.election import MemberState, OwnState, counts, majority_of
from tailrace_server.replication.lineage import TOKEN_BYTES, Lineage, MemberStart, learned, why_older
from tailrace_server.replication.membership import ID_BYTES as PLACEMENT_ID_BYTES
from tailrace_server.replication.membership import MembershipFile
from tailrace_server.replication.outsider import adding
from tailrace_server.replication.peers import AWAITED_MAX, awaited_to_json, held_of, name_of, standings_of
from tailrace_server.replication.role import Role
from tailrace_server.replication.standings import PartitionId, Standing
from tailrace_server.replication.twin import Twin
from tailrace_server.replication.unreadable import unreadable_of
from tailrace_server.replication.voters import TERMS_AHEAD_MAX, Voters, voters_to_json

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.groups import GroupSettings
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")

# The bytes of a group's number behind a placement id.
_GROUP_BYTES = 4


class LocalMember:
    """This node as a member of a group's set, or as a plain replica. Only its own methods change its fields."""

    def __init__(self, node: LocalNode, leadership: Leadership, settings: GroupSettings) -> None:
        """Reads the promises of the directory in the group of ``settings``. Raises BadDirectory, OSError."""
        own = settings.own
        self.node = node
        self.leadership = leadership
        self.is_in_set = leadership.in_set
        self.name = str(own) if self.is_in_set else name_of(node)  # the address by which the others call this node
        self.file = MembershipFile(
            node.host.disk,
            node.config.data,
            node.identity.placement_id,
            len(leadership.members.now),
            self.number,
            own=self.name,
            name=settings.membership_name,
            write=node.storage.space.write_small,
        )
        self._sources = () if self.is_in_set else (_source(settings.source),)
        self.promoting = False
        self.start_token = b""  # of this process, once it has begun
        self.twin = Twin(node, leadership, self.name, lambda: (self.line, self.is_new), self._has_seat)
        self.ready: tuple[int, int] | None = None  # as in `MemberState`
        self._was_named = False  # whether the list is that of a record

        leadership.members.on_change(lambda change: self.file.become(len(leadership.members.now), self.number))
        self._begun_with = leadership.members.now  # the list that the node was started with
        self.take_list()
        is_option = node.config.member_name is None  # else a coordinator has told the list
        if is_option and self.file.now.voters.is_named and set(leadership.members.now) != set(self._begun_with):
            log.warning(
                "the members are %s, by the record of the voters of %s. The list that this node was started with, %s, "
                "is older and decides nothing: change --members",
                *(",".join(self.members), self.file.now.voters, ",".join(map(str, self._begun_with))),
            )

    @property
    def number(self) -> int:
        """The place of this node in the list of members, from 0; -1 outside of a set, and if it is no member."""
        return self.leadership.members.number

    @property
    def others(self) -> tuple[Address, ...]:
        """The other members of the set; of a plain replica, the node that it follows."""
        return self.leadership.members.others or self._sources

    @property
    def votes(self) -> bool:
        """Whether this node's promises and acknowledgements count."""
        return self.file.now.counts and not self.twin.why

    def _has_seat(self) -> bool:
        return self.file.now.voters.has(self.node.identity.placement_id)

    @property
    def line(self) -> Lineage:
        """The starts of its directory, as this node tells them."""
        now = self.file.now
        start = now.start._replace(end=self.node.storage.journal.synced_end)
        return Lineage(start, now.before, now.older is not None)

    def begin_start(self) -> bytes:
        """Returns the token of this start, by which a leader tells this process from one on a copy of the directory."""
        self.start_token = self.new_token()
        return self.start_token

    def new_token(self) -> bytes:
        """Returns a token for another start."""
        return self.node.host.randomness.token(TOKEN_BYTES)

    @property
    def members(self) -> tuple[str, ...]:
        """The present list of members; empty for a plain replica."""
        return self.leadership.members.names

    def why_no_member(self) -> str:
        """Returns the sentence that this node is in no seat of its set; "" if it is, or outside of a set.

        A process on a copy of a member's directory is none beside the original.
        """
        if self.twin.why:
            return self.twin.why
        if not self.is_in_set or self.number >= 0:
            return ""
        return (
            f"{self.name} is no member of its set: {', '.join(self.members)} are, by {self.file.now.voters}. It has no "
            f"vote, follows no leader, and does not lead. Stop it; or make it a member with "
            f"`{adding(self.name, self.members[0])}`"
        )

    def take_list(self) -> None:
        """Takes the list of members by the record, which is stored already.

        A record that names none is of the list that the node was started with.
        """
        voters, members = self.file.now.voters, self.leadership.members
        if voters.is_named:
            members.become(map(parse_address, voters.members))
        elif self._was_named and len(voters.seats) == len(self._begun_with):
            members.become(self._begun_with)
        self._was_named = voters.is_named

    @property
    def is_new(self) -> bool:
        """Whether the directory has never belonged to a set of the group, and holds nothing of the group.

        Feeds that another group has listed are nothing yet.
        """
        if self.file.now.founded:
            return False
        group = self.leadership.group
        return not (group.lists_feeds and len(self.node.feeds)) and not any(p.high_seq for p in group)

    @property
    def may_join(self) -> bool:
        """Whether this node may join the cluster of another one: it is new, and the group has ``_feeds``.

        A node is of one cluster in all its groups.
        """
        return self.leadership.group.lists_feeds and self.is_new

    @property
    def source(self) -> str:
        """The address of the node that a plain replica follows."""
        return str(self.others[0])

    def own_state(self) -> OwnState:
        """Returns the part of this node's state that decides its next step."""
        now = self.file.now
        return OwnState(
            self.number,
            self.is_new,
            now.counts,
            now.term,
            now.leader_term,
            now.led,
            frozenset(now.founders),
            self.node.identity.placement_id,
            now.voters,
            self.node.config.may_found,
        )

    def counts(self, votes: bool, placement_id: bytes) -> bool:
        """Returns whether the promise of a member counts for a majority, by this node's record of the voters."""
        return self.counts_seen(MemberState(placement_id, votes=votes))

    def counts_seen(self, seen: MemberState) -> bool:
        """Returns whether the answer of another member counts: one without a vote changes nothing."""
        now = self.file.now
        return counts(seen, now.voters, now.founders)

    @property
    def majority(self) -> int:
        """The number of voters that decide, by this node's record."""
        now = self.file.now
        return now.voters.majority if now.voters.epoch else majority_of(len(self.members) or len(self.others) + 1)

    def question(self) -> dict[str, Any]:
        """Returns the body of MEMBER: it tells this node's promise, and its record of the voters.

        A leader also tells the feeds whose writes wait until they are followed.
        """
        now = self.file.now
        if not self.is_in_set or not now.voters.epoch:
            return {}
        cluster_id = self.node.identity.cluster_id.hex()
        promise = {"term": now.term, "placement_id": self.node.identity.placement_id.hex()}
        return {
            "voters": voters_to_json(now.voters),
            "cluster_id": cluster_id,
            "members": list(self.members),
            **promise,
            **awaited_to_json(self.leadership.awaited(AWAITED_MAX)),
        }

    def learns(self, voters: Voters) -> bool:
        """Returns whether ``voters``, told by a member of this set and cluster, takes the place of this node's record.

        A record far above all terms that this node knows is not believed: no promise of such a term is made either.
        """
        now = self.file.now
        if not self.is_in_set or not voters.is_later(now.voters) or voters.term > now.term + TERMS_AHEAD_MAX:
            return False
        return voters.is_named or len(voters.seats) in (len(self.members), len(self._begun_with))

    def count(self) -> None:
        """Counts by this node's record from now on, as the leader."""
        self.leadership.count_by(self.file.now.voters, self.node.identity.placement_id)

    def caught_up(self, record: Voters) -> None:
        """Notes that this directory has, or owes, all rows that its leader had when it counted by ``record``."""
        self.ready = (record.term, record.epoch)

    @property
    def foreign_term(self) -> int:
        """The newest term in the logs of a member without a vote; 0 with a vote, or if it holds nothing.

        Such a node may have led by itself, or may be restored from a backup. So the voters need not know of that term.
        """
        held = (partition.log.term for partition in self.leadership.group if partition.high_seq)
        return 0 if self.votes else max(held, default=0)

    def state(self) -> MemberState:
        """Returns what this node answers to MEMBER."""
        node, leadership, now = self.node, self.leadership, self.file.now
        leads = leadership.role is Role.LEADER
        return MemberState(
            node.identity.placement_id,
            node.identity.cluster_id,
            self.is_new,
            self.votes,
            leads,
            leadership.term if leads else now.term,
            now.leader_term,
            now.led,
            self.promoting,
            self.name if leads else leadership.leader,
            now.founders,
            *held_of(leadership.group.unsorted()),
            self.members,
            len(unreadable_of(node, leadership.group)),
            self.line if self.is_in_set and not self.is_new else None,  # copies of a new directory are alike
            self.known_starts(),
            self.is_in_set and node.config.replication.failover is Failover.AUTO,
            now.voters,
            self.ready,
            not node.storage.is_hindered,
            leads and bool(leadership.withheld),
            f"tailrace {_version.__version__}",
        )

    def known_starts(self) -> dict[bytes, MemberStart]:
        """Returns the last start of each other directory that this node was told of, by placement id."""
        suffix = self._start_suffix
        return {
            id[:PLACEMENT_ID_BYTES]: MemberStart(*start)
            for id, start in self.node.storage.held.others.items()
            if id[PLACEMENT_ID_BYTES:] == suffix
        }

    def known_start(self, placement_id: bytes) -> MemberStart | None:
        """Returns the last start of a directory that this node was told of."""
        start = self.node.storage.held.others.get(placement_id + self._start_suffix)
        return None if start is None else MemberStart(*start)

    def learn_start(self, placement_id: bytes, start: MemberStart) -> None:
        """Notes a start of another directory; durable soon."""
        self.node.storage.held.remember(
            placement_id + self._start_suffix, learned(self.known_start(placement_id), start)
        )

    @property
    def _start_suffix(self) -> bytes:
        """The end of a key in HELD: a directory counts its starts in each group by itself."""
        number = self.leadership.group.number
        return number.to_bytes(_GROUP_BYTES, "big") if number else b""

    def begin_promotion(self) -> None:
        """Notes that this node tries to lead."""
        self.promoting = True

    def end_promotion(self) -> None:
        """Notes that the try has ended."""
        self.promoting = False

    def found_older(self, start: MemberStart) -> bool:
        """Notes that another member was told of ``start`` of this directory. Returns whether the vote was lost by that.

        It is lost if the directory is an older copy of itself, which does not know of that start. A leader keeps its
        vote, since its rows are the set's by definition. Raises OSError if MEMBERSHIP cannot be written.
        """
        now = self.file.now
        if self.is_new:
            return False
        if now.older is None and why_older("", start, self.line):
            older = now.found_older(start)
        elif now.older is not None and start > now.older:
            older = now._replace(older=start)
        else:
            return False
        leads = self.leadership.role is Role.LEADER
        if leads:
            older = older.caught_up(self.new_token())._replace(led=now.led)
        self.file.store(older)
        if not leads:
            log.error("%s", why_older(self.name, None, self.line))
        return not leads

    # Debts

    def owe(self, partition: Partition, term: int, seq: int) -> None:
        """Writes a debt: ``partition`` is about to go back below a standing that may have been acknowledged.

        Raises OSError.
        """
        if not self.is_in_set or not self.file.now.votes:
            return
        debt = Debt(PartitionId(partition.feed_id, partition.id), Standing(term, seq))
        self.file.store(self.file.now.owing(with_debt(self.file.now.owes, debt)))
        log.warning(
            "partition %s of feed %s goes back below seq %s, which this node may have acknowledged: by its promise "
            "no node is promoted that has less",
            *(partition.id, partition.feed_name, seq),
        )

    def owes(self, partition: Partition) -> bool:
        """Returns whether this node has acknowledged rows of ``partition`` that it has lost since."""
        partition_id = PartitionId(partition.feed_id, partition.id)
        return any(debt.partition_id == partition_id for debt in self.file.now.owes)

    def settle_debts(self) -> None:
        """Drops debts that durable rows cover again. Raises OSError."""
        if not self.file.now.owes:
            return
        group, [listed] = self.leadership.group, self.node.feeds.system.partitions
        owes_feeds = not group.lists_feeds and self.node.leaderships.of_partition(listed).owes(listed)
        left = unpaid(self.file.now.owes, standings_of(group), owes_feeds=owes_feeds)
        self.file.store(self.file.now.owing(left))


def _source(address: Address | None) -> Address:
    assert address is not None, "a node without a set and without a source is alone"
    return address
