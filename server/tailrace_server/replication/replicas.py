"""The replicas that follow this leader, how far each has come, and the quorum seqs that follow from that.

    REPLICA_ACK ──> Peer (for status) ──> Acknowledgements of the partition, if the peer has a vote
                                                       │
    durable_through of the leader's own disk ──────────┴──> partition.set_quorum_seq ──> waiting answers, streams

Rows at quorum must not be lost with their feed. So no row of a feed is at quorum before the row of ``_feeds`` that made
the feed.

A peer without a vote is forgotten with its last stream. There is at most one peer with a vote for each other member of
the set, so other nodes cannot make this grow. The record of the voters says who has a vote (voters.py). In epoch 0 a
replica says so itself, and once a replaced disk has its vote, the old disk at its address has none.

A leader keeps one process for each directory. If another one asks for a stream, by its token, the connections of the
former end, and what that has acknowledged counts for no majority any more: it may be a copy of the directory that holds
these rows. If the former asks again, there are two, and it is refused (directory_processes.py).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tailrace.errors import Forbidden, ProtocolError
from tailrace.model import Level
from tailrace.wire.replica_messages import Replica, ReplicaAck
from tailrace_server.replication.directory_processes import DirectoryProcesses
from tailrace_server.replication.member_list import MemberList
from tailrace_server.replication.quorum import Acknowledgements
from tailrace_server.replication.voters import Voters

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition


log = logging.getLogger("tailrace.server")


class Acknowledged(NamedTuple):
    """The last acknowledgement of a partition by a replica, and its time in monotonic seconds."""

    ack: ReplicaAck
    at: float


class ReplicaConnection(Protocol):
    """A connection of a replica, on which the replica can be asked whether this node leads."""

    def ask(self, number: int) -> None:
        """Sends LEADER_CHECK."""

    def end(self, message: str) -> None:
        """Ends the streams of the replica."""


class Peer:
    """One data directory that follows, as one process has it."""

    def __init__(self, replica: Replica) -> None:
        self.placement_id = replica.placement_id
        self.address = replica.address
        self.start = replica.start  # the token of its process, b"" if it was of an earlier version
        self.claims = False  # whether it says that it has a vote
        self.takes_ttls = True  # whether it can read blocks with ttls
        self.votes = False
        self.streams: dict[Partition, int] = {}  # the number of open ones; two for a moment if it has reconnected
        self.acknowledged: dict[Partition, Acknowledged] = {}
        self.acknowledged_at: float | None = None  # the time of its last acknowledgement, in monotonic seconds
        self.connections: dict[ReplicaConnection, None] = {}

    def add_connection(self, connection: ReplicaConnection) -> None:
        """Notes that the replica can be asked by ``connection``."""
        self.connections[connection] = None

    def is_told(self, start: bytes) -> None:
        """Notes the token of its process, which one of an earlier version does not have."""
        self.start = start

    def remove_connection(self, connection: ReplicaConnection) -> None:
        """Notes that ``connection`` has ended."""
        self.connections.pop(connection, None)

    @property
    def is_connected(self) -> bool:
        """Whether it has any stream now. A peer with a vote stays known while it is away."""
        return bool(self.streams)

    def lag(self, partition: Partition) -> int:
        """Returns the number of mutations of ``partition`` that it has not acknowledged."""
        last = self.acknowledged.get(partition)
        return max(0, partition.high_seq - (0 if last is None else last.ack.seq))

    def to_json(self, partition: Partition, now: float) -> dict[str, Any]:
        """Returns one of the ``followers`` of a partition in status."""
        last = self.acknowledged.get(partition)
        seq = 0 if last is None else last.ack.seq
        return {
            "placement_id": self.placement_id.hex(),
            "address": self.address,
            "seq": seq,
            "lag": self.lag(partition),
            "since_ack_s": None if last is None else now - last.at,
            "votes": self.votes,
            "connected": partition in self.streams,
        }

    def missing(self, partitions: Iterable[Partition], level: Level) -> int:
        """Returns the number of mutations at ``level`` that it has not acknowledged on the newest branches."""
        missing = 0
        for partition in partitions:
            last = self.acknowledged.get(partition)
            if last is None or last.ack.branch != partition.log.branch:
                missing += partition.high_seq  # not known: most likely the peer has just connected
            else:
                missing += max(0, partition.visible_seq(level) - last.ack.seq)
        return missing

    def note(self, partition: Partition, ack: ReplicaAck, now: float) -> None:
        """Notes an acknowledgement."""
        self.acknowledged[partition] = Acknowledged(ack, now)
        self.acknowledged_at = now

    def summary(self, lag: int, now: float) -> dict[str, Any]:
        """Returns one of the ``replicas`` of a node in status. ``lag``: over all partitions of the group.

        A peer that is away falls behind, too. A partition that it does not stream counts, as a whole if it never
        acknowledged any of it.
        """
        last = self.acknowledged_at
        return {
            "placement_id": self.placement_id.hex(),
            "address": self.address,
            "votes": self.votes,
            "connected": self.is_connected,
            "partitions": len(self.streams),
            "lag": lag,
            "since_ack_s": None if last is None else now - last,
        }


class Replicas:
    """The replicas of a leader. They are forgotten with every change of leadership; the order of processes is not."""

    def __init__(self, members: MemberList, needed: int, feeds: Partition) -> None:
        """Knows no record of the voters yet.

        Args:
            members: The members of the set, which may have votes; none outside of a set.
            needed: The number of other voters that make a majority, with this node if it is a voter.
            feeds: The partition of ``_feeds``.
        """
        self.peers: dict[bytes, Peer] = {}
        self.plain = ""  # the address of a replica that has followed this node, which is in no set, since its start
        self._processes = DirectoryProcesses()
        self._members = members
        self._needed = needed
        self._voters = Voters()
        self._quorums: dict[Partition, Acknowledgements] = {}
        self._watching: dict[Partition, Callable[[], None]] = {}
        self._feeds = feeds
        self._unlisted: dict[Partition, None] = {}  # partitions of feeds that a failover may still undo
        feeds.watchers.watch(Level.QUORUM, self._feeds_settled)

    def opened(self, replica: Replica, partition: Partition, *, takes_ttls: bool = True) -> Peer:
        """Notes that a stream of ``partition`` was opened for ``replica``. Returns its peer.

        ``takes_ttls``: the replica has said that it can read blocks with ttls.
        """
        if not self._members.now:
            self.plain = replica.address
        peer = self._peer_of(replica)
        has_moved, peer.address = peer.address != replica.address, replica.address
        peer.streams[partition] = peer.streams.get(partition, 0) + 1
        if self._members.now and partition not in self._quorums:
            self._watch(partition)
        peer.claims, peer.takes_ttls = replica.votes, takes_ttls
        self._set_vote(peer, self._counts(peer), has_moved=has_moved)
        return peer

    def _peer_of(self, replica: Replica) -> Peer:
        """Returns the peer of a replica that opens a stream, a new one if that is another process."""
        self._processes.follows(replica.placement_id, replica.start)
        former = self.peers.get(replica.placement_id)
        if former is not None and (former.start == replica.start or not (former.start and replica.start)):
            former.is_told(replica.start)
            return former
        peer = self.peers[replica.placement_id] = Peer(replica)
        if former is not None:
            self._end_former(former, peer)
        return peer

    def _end_former(self, former: Peer, peer: Peer) -> None:
        former.votes = False
        self._unvote(former)
        message = f"another process on the directory {peer.placement_id.hex()} follows this node as {peer.address} now"
        for connection in list(former.connections):
            connection.end(message)

    def why_replaced(self, replica: Replica) -> str:
        """Returns the sentence why a process is not served, as another one on its directory follows; "" if it is."""
        processes, id, start = self._processes, replica.placement_id, replica.start
        if not processes.is_former(id, start):
            return ""
        why = (
            f"two processes follow this node as {replica.address}, from the directory {id.hex()} and a copy of it: the "
            "one that came later is served, and the earlier one is not. Stop one of the two, remove its directory, and "
            "start the other one again"
        )
        if not processes.told_of(id, start):
            log.warning("%s", why)
        return why

    def is_current(self, peer: Peer) -> bool:
        """Returns whether the process of ``peer`` is the one that follows from its directory, of this leadership."""
        return self.peers.get(peer.placement_id) is peer

    def closed(self, peer: Peer, partition: Partition) -> None:
        """Notes that one of these streams has ended."""
        left = peer.streams.pop(partition, 1) - 1
        if left:
            peer.streams[partition] = left
        if not peer.streams and not peer.votes and self.peers.get(peer.placement_id) is peer:
            del self.peers[peer.placement_id]

    def require_ttls(self) -> None:
        """Raises Forbidden if a replica that follows, or a voter that has followed, cannot read blocks with ttls."""
        lacking = sorted(peer.address for peer in self.peers.values() if not peer.takes_ttls)
        if lacking:
            raise Forbidden(
                f"a ttl was given, and {', '.join(lacking)} run a release that does not know ttls: it could not follow "
                "any more. Update first; until then write without ttls"
            )

    def acknowledged(self, placement_id: bytes, partition: Partition, ack: ReplicaAck, now: float) -> None:
        """Notes that a replica holds ``partition`` as far as ``ack`` says.

        Raises ProtocolError for a seq above the high seq.
        """
        if ack.branch == partition.log.branch and ack.seq > partition.high_seq:
            raise ProtocolError(
                f"REPLICA_ACK: seq {ack.seq} of partition {partition.id}, which ends at {partition.high_seq}"
            )
        peer = self.peers.get(placement_id)
        if peer is None:
            return
        peer.note(partition, ack, now)
        if peer.votes:
            self._count(peer, partition, ack)

    def end(self, address: str, message: str) -> None:
        """Ends the streams of the peers at ``address``."""
        for peer in [peer for peer in self.peers.values() if peer.address == address]:
            for connection in list(peer.connections):
                connection.end(message)

    def holds(self, partition: Partition, seq: int) -> bool:
        """Returns whether a majority by the present record holds ``partition`` up to ``seq``.

        ``Partition.quorum_seq`` may be of an earlier record.
        """
        acknowledgements = self._quorums.get(partition)
        if acknowledgements is None:
            return not seq
        return acknowledgements.quorum_seq(partition.durable_seq, partition.log) >= seq

    def is_streamed(self, partition: Partition) -> bool:
        """Returns whether so many voters stream ``partition`` that its rows can come to a majority."""
        return sum(partition in peer.streams for peer in self.voters()) >= self._needed

    def followers(self, partition: Partition) -> list[Peer]:
        """Returns the peers that stream ``partition``, or have acknowledged some of it."""
        return [p for p in self.peers.values() if partition in p.streams or partition in p.acknowledged]

    @property
    def needed(self) -> int:
        """The number of other voters that make a majority, with this node if it is a voter."""
        return self._needed

    def is_voter(self, placement_id: bytes) -> bool:
        """Returns whether the acknowledgements of this disk count. It does not before the disk has opened a stream."""
        peer = self.peers.get(placement_id)
        return peer is not None and peer.votes

    def voters(self) -> list[Peer]:
        """Returns the peers whose acknowledgements count."""
        return [peer for peer in self.peers.values() if peer.votes]

    def forget(self, partition: Partition) -> None:
        """Forgets a partition whose feed was dropped."""
        notify = self._watching.pop(partition, None)
        if notify is not None:
            partition.watchers.unwatch(Level.DISK, notify)
        self._quorums.pop(partition, None)
        self._unlisted.pop(partition, None)
        for peer in self.peers.values():
            peer.acknowledged.pop(partition, None)

    def count_by(self, voters: Voters, needed: int) -> None:
        """Counts by this record from now on; ``needed`` as when this was made."""
        self._voters, self._needed = voters, needed
        for peer in list(self.peers.values()):
            votes = self._counts(peer)
            if votes != peer.votes:
                self._set_vote(peer, votes, has_moved=False)
            if not votes and not peer.streams:
                self.peers.pop(peer.placement_id, None)
        for partition, acknowledgements in list(self._quorums.items()):  # this may cause a drop
            acknowledgements.need(needed)
            self._move(partition)

    def _counts(self, peer: Peer) -> bool:
        if self._voters.epoch:
            return peer.claims and self._voters.has(peer.placement_id)
        return peer.claims and peer.address in self._members.other_names

    def clear(self) -> None:
        """Forgets all peers: the node leads no more, or in another term, and replicas have to connect again."""
        for partition in list(self._watching):
            self.forget(partition)
        self.peers.clear()

    def _set_vote(self, peer: Peer, votes: bool, *, has_moved: bool) -> None:
        if votes == peer.votes and not (votes and has_moved):
            return
        peer.votes = votes
        if not votes:
            self._unvote(peer)
            return
        for other in list(self.peers.values()) if not self._voters.epoch else ():
            if other is not peer and other.votes and other.address == peer.address:
                other.votes = False
                self._unvote(other)
                if not other.streams:
                    del self.peers[other.placement_id]
        for partition, last in list(peer.acknowledged.items()):  # this may cause a drop
            self._count(peer, partition, last.ack)

    def _unvote(self, peer: Peer) -> None:
        for acknowledgements in self._quorums.values():
            acknowledgements.forget(peer.placement_id)

    def _watch(self, partition: Partition) -> None:
        self._quorums[partition] = Acknowledgements(self._needed)

        def durable() -> None:
            self._move(partition)

        self._watching[partition] = durable
        partition.watchers.watch(Level.DISK, durable)

    def _count(self, peer: Peer, partition: Partition, ack: ReplicaAck) -> None:
        acknowledgements = self._quorums.get(partition)
        if acknowledgements is None:
            return
        if acknowledgements.acknowledged(peer.placement_id, ack.branch, ack.seq, partition.log):
            self._move(partition)

    def _feeds_settled(self) -> None:
        for partition in [p for p in self._unlisted if p.listed_seq <= self._feeds.quorum_seq]:
            if partition in self._unlisted:  # else the news of another partition has caused its drop
                del self._unlisted[partition]
                self._move(partition)

    def _move(self, partition: Partition) -> None:
        if partition.listed_seq > self._feeds.quorum_seq:
            self._unlisted[partition] = None
            return
        seq = self._quorums[partition].quorum_seq(partition.durable_seq, partition.log)
        if seq > partition.quorum_seq:
            partition.set_quorum_seq(seq)
