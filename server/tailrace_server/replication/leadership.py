"""The leadership of a group of partitions: who leads it, and how streams and answers end with a change of leader.

replication/member.py decides who leads, and says it by ``become_leader``, ``become_follower`` and ``step_down``. When
one of them has returned, nothing is written, answered or acknowledged by the earlier role.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from tailrace.errors import Forbidden, NotDurable, NotLeader, Overloaded
from tailrace.model import EndReason, Level
from tailrace.model.failover import SEQ_MAX
from tailrace.wire.replica_messages import ReplicaAck
from tailrace_server.host.answers import Answer, Cancel, answered
from tailrace_server.partition.branching import FIRST_TERM
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.groups import Group
from tailrace_server.replication.leader_watch import LeaderWatch
from tailrace_server.replication.member_list import MemberList
from tailrace_server.replication.read_index import Confirmations
from tailrace_server.replication.replicas import Replicas
from tailrace_server.replication.role import Role
from tailrace_server.replication.voters import Voters
from tailrace_server.replication.waiting import WaitingAnswers
from tailrace_server.stream.open_streams import OpenStreams
from tailrace_server.stream.partition_stream import PartitionStream

# Asks the leader how far it has the partitions of these feeds: by feed, a seq of each partition.
AcceptedSeqs: TypeAlias = Callable[[list[bytes]], Awaitable[Mapping[bytes, Sequence[int]]]]

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_DISK, _QUORUM = Level.DISK, Level.QUORUM


class Leadership:
    """The role of this node in one group of partitions, and the members of that group.

    Only ``become_leader``, ``become_follower``, ``step_down``, and the methods that pause and withhold writes, change
    the role.
    """

    def __init__(
        self,
        group: Group,
        streams: OpenStreams,
        waiting: WaitingAnswers,
        *,
        members: MemberList,
        is_alone: bool,
    ) -> None:
        """Begins as the leader if the node is alone, else as a follower until it is told to lead.

        Args:
            group: the partitions that are led or followed.
            streams: the open streams of the node. Those of the group end if the role changes.
            waiting: the answers of the node that wait. Those of the group fail if the role changes.
            members: the members of the group's set; none outside of a set.
            is_alone: whether the node is neither a member of a set nor a plain replica.
        """
        self.group = group
        self.members = members
        self.is_alone = is_alone
        self._streams = streams
        self.role = Role.LEADER if is_alone else Role.FOLLOWER
        self.term = 0
        self.leader = ""  # the name of the leader that is followed; "" if none is, or if this node leads
        self._why_outside = ""  # why this node is no member; "" if it is one
        self._outside_leader = ""  # the name of the leader of the members then; "" if none is known
        self._address_of: Callable[[str], str] = _as_named
        self.refuses_writes = not is_alone
        # the number of times that this node became the leader, ceased to be it, or led in another term
        self.changes = 0
        self._is_paused = False
        self._had: dict[Partition, int] = {}
        self.withheld = ""  # why this leader takes no writes; "" if it does
        self.sure_until = math.inf  # monotonic seconds: then the last confirmation by a majority is too old
        self._why_unsure = ""
        self.watch = LeaderWatch()  # the signs of life of the leader that is followed
        self.replicas = Replicas(members, self.majority - 1, group.feeds.system.partitions[0])
        self._waiting = waiting
        self.confirmations = Confirmations(self.majority - 1, self._ask_replicas)
        # `decided_by` sets these.
        self.on_higher_term: Callable[[int], None] = _nothing
        self.accepted_seqs: AcceptedSeqs | None = None
        self.on_shortfall: Callable[[Partition, int, int], None] = _nothing_owed
        self.owes: Callable[[Partition], bool] = _owes_nothing
        self.resign: Callable[[], None] = _leads_on
        for partition in group:
            self.adopt(partition)

    def decided_by(
        self,
        on_higher_term: Callable[[int], None],
        accepted_seqs: AcceptedSeqs,
        on_shortfall: Callable[[Partition, int, int], None],
        owes: Callable[[Partition], bool],
        resign: Callable[[], None],
    ) -> None:
        """Connects the part that decides who leads. A node that is alone has none.

        Args:
            on_higher_term: called with a term above the own one that a replica has promised.
            accepted_seqs: asks the leader how far the partitions of these feeds have come there.
            on_shortfall: called before a partition is rolled back below its common history with the leader, with
                the term and the seq of its standing there.
            owes: returns whether this node has acknowledged rows of a partition that it has lost since.
            resign: called if this node cannot lead any more: it steps down, and looks for a leader.
        """
        self.on_higher_term, self.accepted_seqs, self.on_shortfall = on_higher_term, accepted_seqs, on_shortfall
        self.owes, self.resign = owes, resign

    def located_by(self, address_of: Callable[[str], str]) -> None:
        """Connects the function that tells the present address of a member by its name."""
        self._address_of = address_of

    def address_of(self, name: str) -> str:
        """Returns the present address of a member by its name."""
        return self._address_of(name)

    @property
    def leader_address(self) -> str:
        """The present address of the leader, for clients; "" if none is known, or if this node leads.

        It is the one that is followed; for a node that is no member, the one that the members have told.
        """
        leader = self.leader or self._outside_leader
        return self._address_of(leader) if leader else ""

    @property
    def in_set(self) -> bool:
        """Whether the group has members, so that a majority of them decides."""
        return bool(self.members.now)

    @property
    def majority(self) -> int:
        """The number of voters that have to hold the rows of level quorum; 1 outside of a set."""
        return len(self.members.now) // 2 + 1

    def count_by(self, voters: Voters, own_id: bytes) -> None:
        """Counts acknowledgements and confirmations by this record from now on.

        ``own_id``: this node's placement id. A leader that is no voter needs a majority of others.
        """
        # A seat is dropped only if a majority holds the rows that there are now.
        self._had = {partition: partition.high_seq for partition in self.group} if voters.leaving else {}
        is_voter = voters.has(own_id) or not voters.epoch
        needed = (voters.majority if voters.epoch else self.majority) - is_voter
        self.replicas.count_by(voters, needed)
        self.confirmations.recount(needed)
        self._streams.flush()

    def is_held(self) -> bool:
        """Returns whether a majority holds all rows that this leader had when it began to count by its record.

        Call it if a member is to leave by that record.
        """
        feeds = self.group.feeds
        left = ((each, seq) for each, seq in self._had.items() if feeds.find(each.feed_id) is not None)
        return all(self.replicas.holds(partition, seq) for partition, seq in left)

    def end_replicas(self, names: Collection[str]) -> None:
        """Ends the streams by which the nodes of these addresses follow this one: they are members no more."""
        for name in names:
            self.replicas.end(name, f"{name} is no member of the set any more")
        self._streams.flush()

    def stand_outside(self, why: str, leader: str) -> None:
        """Notes the sentence why this node is no member of its set, and the set's leader, for clients.

        Both are "" if it is a member; the leader also if none is known.
        """
        self._why_outside, self._outside_leader = why, leader

    def become_leader(self, term: int) -> None:
        """Leads from now on, in ``term``. The streams of a follower end."""
        self._become(Role.LEADER, term, "")

    def become_follower(self, term: int, leader: str) -> None:
        """Follows the node at ``leader`` ("HOST:PORT") from now on, in ``term``.

        A leader takes no writes any more: its streams and barriers end, and answers that wait for a majority fail,
        since only the new leader knows their outcome.
        """
        self._become(Role.FOLLOWER, term, leader)

    def step_down(self, term: int) -> None:
        """Follows without a leader: this node has promised ``term``, or looks for a leader."""
        self._become(Role.FOLLOWER, term, "")

    def _become(self, role: Role, term: int, leader: str) -> None:
        before, self.role = self.role, role
        is_other_right = role is not before or (role is Role.LEADER and term != self.term)
        self.term, self.leader = term, leader
        self._why_outside = self._outside_leader = ""
        self._is_paused, self.withheld, self.refuses_writes = False, "", role is not Role.LEADER
        self.sure_until = math.inf
        if role is not before:
            message = f"this node is a {role.value} now"
            for partition in self.group.unsorted():
                self.adopt(partition)
            self._streams.end_replicas(self, NotLeader(message))
            self._streams.end_streams(self._has, EndReason.WRONG_STATE, message)
        elif is_other_right:
            self._streams.end_replicas(self, NotLeader(f"this node leads in term {term} now"))
        if is_other_right:
            self.changes += 1
            error = self.not_leader() if role is not Role.LEADER else NotLeader("this node leads anew: ask again")
            self.replicas.clear()
            self.confirmations.fail(error)
            self._waiting.fail_where(self.group.has, error)
        self._streams.flush()

    def adopt(self, partition: Partition) -> None:
        """Gives ``partition`` the role of this node. Call it for each partition of a feed that was just created."""
        on_history_changed = None if self.is_alone else partial(self._history_changed, partition)
        partition.become(self.role.value, needs_quorum=self.in_set, on_history_changed=on_history_changed)

    @property
    def branches_new_feeds(self) -> bool:
        """Whether this leader has to begin a branch of its term in each partition that is made while it leads.

        An earlier leader may have made the same feed, since a request to create one comes again with the same feed id.
        That leader's copy has a term of its own, or rows of the first term, and would stand above rows that a
        majority has got from this leader.
        """
        return self.role is Role.LEADER and not self.is_alone and self.term != FIRST_TERM

    def pause_writes(self) -> None:
        """Takes no writes until ``resume_writes`` or another role: a handover is under way."""
        self._is_paused = self.refuses_writes = True

    def resume_writes(self) -> None:
        """Ends ``pause_writes``."""
        self._is_paused = False
        self.refuses_writes = self.role is not Role.LEADER or bool(self.withheld)

    def withhold_writes(self, why: str) -> None:
        """Takes no writes until ``restore_writes`` or another role, and fails the answers that wait for a majority.

        Another node may lead by now, and clients look for it. ``why`` is the sentence that they get.
        """
        self.withheld, self.refuses_writes = why, True
        self._waiting.fail_where(self.group.has, NotLeader(why))
        self._streams.flush()

    def restore_writes(self) -> None:
        """Ends ``withhold_writes``."""
        self.withheld, self.refuses_writes = "", self.role is not Role.LEADER or self._is_paused

    def is_sure_until(self, at: float, why: str) -> None:
        """Notes that a majority has confirmed this leader, which counts until ``at`` (monotonic seconds).

        ``withhold_writes`` comes by a task. If the whole process was stopped, writes may have their turn before that.
        ``why`` is the sentence that they get.
        """
        self.sure_until, self._why_unsure = at, why

    def require_sure(self, now: float) -> None:
        """Raises NotLeader if no majority has confirmed this leader lately; ``now``: monotonic seconds."""
        if now >= self.sure_until:
            raise NotLeader(self._why_unsure)

    def not_leader(self) -> NotLeader:
        """Returns the error for a request that needs the leader."""
        leader = self.leader_address
        where = f"the leader is at {leader}" if leader else "it knows no leader at present"
        why = f": {self._why_outside}" if self._why_outside else ""
        return NotLeader(f"this node does not lead; {where}{why}", leader=leader or None)

    def require_leader(self) -> None:
        """Raises NotLeader if this node does not lead."""
        if self.role is not Role.LEADER:
            raise self.not_leader()

    def require_term(self, term: int) -> None:
        """Raises NotLeader unless this node leads, and has led ever since it led in ``term``.

        For work that waits between its steps: another leader's term may have removed the rows of the first steps.
        """
        self.require_leader()
        if self.term != term:
            raise NotLeader(
                f"this node was deposed: it led in term {term}, and leads anew in term {self.term}; ask again"
            )

    def require_writable(self) -> None:
        """Raises NotLeader, or Overloaded during a handover. ``refuses_writes`` says whether it raises."""
        self.require_leader()
        if self.withheld:
            raise NotLeader(self.withheld)
        if self._is_paused:
            raise Overloaded("a handover is under way")

    def require_state(self, state: int) -> None:
        """Raises NotLeader if this node has not the role that a GET asks for: 0 leader, 1 follower."""
        if state == 0:
            self.require_leader()
        elif self.role is Role.LEADER:
            raise NotLeader("this node leads, and a follower was asked for")

    def require_set(self) -> None:
        """Raises NotDurable outside of a set, which has no majority to ask."""
        if not self.in_set:
            raise NotDurable("level quorum needs a set of nodes, and this node is in none: use level disk")

    def require_publishing(self) -> None:
        """Raises Forbidden if a promotion could lose an answered publish: there are replicas, and no set.

        A node that is alone knows only the replicas that have followed it since its start.
        """
        if self.replicas.plain and not self.in_set:
            raise Forbidden(
                f"nothing is published exactly once here: {self.replicas.plain} follows this node, or did since its "
                "start, as a plain replica (--replica-of). If it is promoted, it may lack a committed batch. Make the "
                "nodes a set (--members), whose majority has a batch before it is answered, or write with delivery "
                "at_least_once. If no replica follows this node any more, restart it"
            )

    def confirm(self, callback: Answer) -> Cancel | None:
        """Calls ``callback(None)`` once it is sure that no other node led at this call, or calls it with NotLeader.

        Returns None if the callback was called already, as always if no other node has a vote. Else returns a function
        that cancels the question.
        """
        if self.role is Role.LEADER:
            return self.confirmations.confirm(callback)
        callback(self.not_leader())
        return None

    def acknowledged(self, placement_id: bytes, partition: Partition, ack: ReplicaAck, now: float) -> None:
        """Notes how far a replica has ``partition`` on its disk at ``now``. Answers and streams may wait for that."""
        if self.role is Role.LEADER:
            self.replicas.acknowledged(placement_id, partition, ack, now)

    def awaited(self, most: int) -> list[bytes]:
        """Returns the ids of feeds, ``most`` at most, for which answers wait, and which too few voters stream yet.

        A follower is to ask for these first. Empty if this node does not lead.
        """
        if self.role is not Role.LEADER:
            return []
        partitions = (each for each in self._waiting.awaited(Level.QUORUM) if self.group.has(each))
        ids = (each.feed_id for each in partitions if not self.replicas.is_streamed(each))
        return list(dict.fromkeys(itertools.islice(ids, most)))

    async def leaders_seqs(self, feed_ids: list[bytes]) -> Callable[[bytes, int], int]:
        """Returns how far the leader of the group has come in these feeds: a function of feed id and partition.

        The leader has made sure that it still leads. Raises NotLeader if no leader is known, and the leader's error.
        """
        if self.role is Role.LEADER:
            await self.confirmed()
            feeds = (feed for feed_id in feed_ids if (feed := self.group.feeds.find(feed_id)) is not None)
            own = {feed.info.feed_id: [partition.high_seq for partition in feed.partitions] for feed in feeds}
            return partial(_seq_of, own)
        if self.accepted_seqs is None:
            raise self.not_leader()
        seqs = await self.accepted_seqs(feed_ids)
        return partial(_seq_of, seqs)

    async def confirmed(self) -> None:
        """Returns once it is sure that no other node led when this was called. Raises NotLeader."""
        await answered(self.confirm, self._streams.flush)

    def _has(self, stream: PartitionStream) -> bool:
        """Returns whether the stream is of a partition of this group."""
        return self.group.has(stream.partition) and self.group.feeds.find(stream.partition.feed_id) is not None

    def _history_changed(self, partition: Partition) -> None:
        """Ends the streams of ``partition``, and fails the answers that wait for it: it takes over another history."""
        if not partition.watchers.is_watched:
            return
        message = "what this node holds of the partition is another history now"
        self._streams.end_streams(
            lambda stream: stream.partition is partition,
            EndReason.HISTORY_CHANGED,
            message,
            feed_id=partition.feed_id,
        )
        self._waiting.fail(NotLeader(message, leader=self.leader_address or None), partition)
        self._streams.flush()

    def _ask_replicas(self, number: int) -> None:
        """Asks every replica with a vote whether it has promised a higher term."""
        for peer in self.replicas.voters():
            for connection in peer.connections:
                connection.ask(number)

    @property
    def safest_level(self) -> Level:
        """The level of rows on which all nodes of the set have to agree."""
        return _QUORUM if self.members.now else _DISK  # each write asks


def _seq_of(seqs: Mapping[bytes, Sequence[int]], feed_id: bytes, partition: int) -> int:
    """Returns the seq of a partition in ``seqs``. A dropped feed, whose streams will end, has no bound."""
    found = seqs.get(feed_id, ())
    return found[partition] if partition < len(found) else SEQ_MAX - 1


def _as_named(name: str) -> str:
    """Returns ``name``: members have not moved."""
    return name


def _nothing(term: int) -> None:
    """Ignores a higher term: no part decides who leads."""


def _nothing_owed(partition: Partition, term: int, seq: int) -> None:
    """Owes nothing: a node in no set has no acknowledgements that count."""


def _owes_nothing(partition: Partition) -> bool:
    """Returns False, as `_nothing_owed` is true of all partitions."""
    return False


def _leads_on() -> None:
    """Leads on: a node that is alone has no other leader."""
