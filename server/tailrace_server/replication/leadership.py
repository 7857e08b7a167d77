"""Who leads, and what a change of that does to everybody who is connected.

One node leads all partitions of all feeds. Whether that is this one is decided elsewhere (``replication/member.py``),
and said here by ``lead``, ``follow`` and ``rest``; each of them is done when it returns, so that nothing is taken,
answered or acknowledged by a right that is no more.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tailrace.address import Address
from tailrace.errors import Forbidden, NotDurable, NotLeader, Overloaded
from tailrace.model import EndReason, Level
from tailrace.wire.replica_messages import ReplicaAck
from tailrace_server.catalog import Catalog
from tailrace_server.config import Config
from tailrace_server.partition import Partition
from tailrace_server.replication.confirming import Confirmations
from tailrace_server.replication.replicas import Replicas
from tailrace_server.replication.role import Role
from tailrace_server.replication.waiting import Answer, Cancel, WaitingAnswers

if TYPE_CHECKING:
    from tailrace_server.connection import Connection


class Leadership(abc.ABC):
    """What ``Node`` is to other nodes, and knows of them."""

    connections: dict[Connection, None]
    now: float

    def __init__(self, config: Config, catalog: Catalog) -> None:
        """A node that is alone leads for ever; any other one follows until it is told to lead."""
        self.config = config
        self.feeds = catalog
        self.role = Role.LEADER if self.is_alone else Role.FOLLOWER
        self.term = 0
        self.leader = ""  # the address of the leader that is followed; "" where there is none, or this node leads
        self.refuses_writes = not self.is_alone
        self._is_paused = False
        others = {str(Address(*member)) for member in config.members} - {str(Address(*config.listen))}
        self.replicas = Replicas(frozenset(others), self.majority, catalog.system.partitions[0])
        self.waiting = WaitingAnswers()
        self.confirmations = Confirmations(self.majority, self._ask_replicas)
        # Set by the member's task: a replica has promised this term, which is higher; how far the leader has come.
        self.on_higher_term: Callable[[int], None] = _nothing
        self.accepted_seqs: Callable[[list[bytes]], Awaitable[Mapping[bytes, Sequence[int]]]] | None = None
        # Called before a partition is rolled back below what it has in common with its leader, with the standing there.
        self.on_shortfall: Callable[[Partition, int, int], None] = _nothing_owed
        self.doing = ""  # what is under way, for status
        for partition in catalog.partitions():
            self.adopt(partition)

    @abc.abstractmethod
    def flush(self) -> None:
        """Sends what the last events have brought about."""

    @property
    def is_alone(self) -> bool:
        """It leads by itself: neither a replica of another node nor one of a set."""
        return self.config.is_alone

    @property
    def in_set(self) -> bool:
        """It is one of a set, where a majority decides."""
        return bool(self.config.members)

    @property
    def majority(self) -> int:
        """So many nodes have to hold what is at level quorum, this one included."""
        return len(self.config.members) // 2 + 1

    def lead(self, term: int) -> None:
        """This node leads from now on, in ``term``. Streams that were asked of a follower end."""
        self._become(Role.LEADER, term, "")

    def follow(self, term: int, leader: str) -> None:
        """This node follows the one at ``leader`` ("HOST:PORT") from now on, in ``term``.

        Where it led, it takes nothing more from now on: streams and barriers end, and what waits for a majority is told
        that its outcome is the new leader's to say.
        """
        self._become(Role.FOLLOWER, term, leader)

    def rest(self, term: int) -> None:
        """As ``follow``, of nobody for now: it has promised ``term``, or looks for a leader."""
        self._become(Role.FOLLOWER, term, "")

    def _become(self, role: Role, term: int, leader: str) -> None:
        before, self.role = self.role, role
        is_other_right = role is not before or (role is Role.LEADER and term != self.term)
        self.term, self.leader = term, leader
        self._is_paused, self.refuses_writes = False, role is not Role.LEADER
        if role is not before:
            for partition in self.feeds.partitions():
                self.adopt(partition)
            for connection in list(self.connections):
                connection.close_streams(EndReason.WRONG_STATE, f"this node is a {role.value} now")
        elif is_other_right:
            for connection in list(self.connections):
                connection.close_replica_streams(f"this node leads in term {term} now")
        if is_other_right:
            error = self.not_leader() if role is not Role.LEADER else NotLeader("this node leads anew: ask again")
            self.replicas.clear()
            self.confirmations.fail(error)
            self.waiting.fail(error)
        self.flush()

    def adopt(self, partition: Partition) -> None:
        """A partition is what the node is; to be called of those of a feed that was just created."""
        partition.state = self.role.value
        partition.needs_quorum = self.in_set
        if not self.is_alone:
            partition.on_history_changed = partial(self._history_changed, partition)

    def pause_writes(self) -> None:
        """For a handover: nothing more is written from now on, until ``resume_writes`` or another role."""
        self._is_paused = self.refuses_writes = True

    def resume_writes(self) -> None:
        """Ends ``pause_writes``."""
        self._is_paused, self.refuses_writes = False, self.role is not Role.LEADER

    def not_leader(self) -> NotLeader:
        """What is said to who needs the leader."""
        where = f"the leader is at {self.leader}" if self.leader else "it knows no leader at present"
        return NotLeader(f"this node does not lead; {where}", leader=self.leader or None)

    def require_leader(self) -> None:
        """Raises NotLeader where this node does not lead."""
        if self.role is not Role.LEADER:
            raise self.not_leader()

    def require_term(self, term: int) -> None:
        """Raises NotLeader unless this node leads, and has led ever since it led in ``term``.

        For work that waits between its steps: what the first steps wrote may be gone after another leader's term.
        """
        self.require_leader()
        if self.term != term:
            raise NotLeader(
                f"this node was deposed: it led in term {term}, and leads anew in term {self.term}; ask again"
            )

    def require_writable(self) -> None:
        """Raises NotLeader, or Overloaded while a handover is under way. ``refuses_writes`` tells whether it does."""
        self.require_leader()
        if self._is_paused:
            raise Overloaded("a handover is under way")

    def require_state(self, state: int) -> None:
        """Raises NotLeader where this node is not what a GET asks for: 0 leader, 1 follower."""
        if state == 0:
            self.require_leader()
        elif self.role is Role.LEADER:
            raise NotLeader("this node leads, and a follower was asked for")

    def require_set(self) -> None:
        """Raises NotDurable where there is no majority to ask."""
        if not self.in_set:
            raise NotDurable("level quorum needs a set of nodes, and this node is in none: use level disk")

    def require_publishing(self) -> None:
        """Raises Forbidden where a promotion could lose a publish that was answered: with replicas, and without a set.

        A node that is alone does not know of replicas that are away, but for those that it has seen since its start.
        """
        if self.replicas.plain and not self.in_set:
            raise Forbidden(
                f"nothing is published exactly once here: {self.replicas.plain} follows this node, or did since its "
                "start, as a plain replica (--replica-of). Once promoted, that may lack a batch that was committed. "
                "Make the nodes a set (--members), where a majority has a batch before it is answered, or write with "
                "delivery at_least_once. Where no replica follows this node any more, restart it"
            )

    def confirm(self, callback: Answer) -> Cancel | None:
        """Calls ``callback(None)`` once it is sure that nobody else led when this was called, or with NotLeader.

        At once where no other node has a vote, and gives None then; else what ends the waiting.
        """
        if self.role is Role.LEADER:
            return self.confirmations.confirm(callback)
        callback(self.not_leader())
        return None

    def acknowledged(self, placement_id: bytes, partition: Partition, ack: ReplicaAck) -> None:
        """A replica has ``partition`` on its disk as far as ``ack`` says; an answer or a stream may wait for that."""
        if self.role is Role.LEADER:
            self.replicas.acknowledged(placement_id, partition, ack, self.now)

    def _history_changed(self, partition: Partition) -> None:
        """What the partition holds becomes another history: ends its streams, and what waits for it."""
        if not partition.is_watched:
            return
        message = "what this node holds of the partition is another history now"
        for connection in list(self.connections):
            connection.close_streams(EndReason.HISTORY_CHANGED, message, partition)
        self.waiting.fail(NotLeader(message, leader=self.leader or None), partition)
        self.flush()

    def _ask_replicas(self, number: int) -> None:
        """Asks those who have a vote whether they have promised anybody else."""
        for peer in self.replicas.voters():
            for door in peer.doors:
                door.ask(number)

    @property
    def safest_level(self) -> Level:
        """The level of what every node of the set has to agree on."""
        return Level.QUORUM if self.in_set else Level.DISK

    def system_seqs(self) -> list[tuple[Partition, int]]:
        """How far the list of feeds has come."""
        return [(partition, partition.high_seq) for partition in self.feeds.system.partitions]


def _nothing(term: int) -> None:
    """Until the member's task says what is to be done."""


def _nothing_owed(partition: Partition, term: int, seq: int) -> None:
    """Nobody counts on what a node acknowledges that is no member of a set."""
