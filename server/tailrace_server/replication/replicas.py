"""Who follows this leader, how far each of them has come, and what follows from that for a majority.

    REPLICA_ACK ──> Peer (for status) ──> Acknowledgements of the partition, where it has a vote
                                                       │
    durable_through of the leader's own disk ──────────┴──> partition.set_quorum_seq ──> waiting answers, streams

A peer without a vote is forgotten with its last stream; of those with one there is one for each other member of the set
at most, so nobody can make this grow. A disk that was replaced has another placement id: once it has its vote the old
one has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tailrace.errors import ProtocolError
from tailrace.model import Level
from tailrace.wire.replica_messages import Replica, ReplicaAck
from tailrace_server.replication.quorum import Acknowledgements

if TYPE_CHECKING:
    from tailrace_server.partition import Partition


class Acknowledged(NamedTuple):
    """The last that a replica has acknowledged of a partition, and when (monotonic seconds)."""

    ack: ReplicaAck
    at: float


class Door(Protocol):
    """A connection of a replica on which it can be asked whether this node leads."""

    def ask(self, number: int) -> None:
        """Sends LEADER_CHECK."""


class Peer:
    """One data directory that follows."""

    def __init__(self, replica: Replica) -> None:
        self.placement_id = replica.placement_id
        self.address = replica.address
        self.votes = False
        self.streams: dict[Partition, int] = {}  # how many are open; two for a moment where it has reconnected
        self.acknowledged: dict[Partition, Acknowledged] = {}
        self.doors: dict[Door, None] = {}

    def to_json(self, partition: Partition, now: float) -> dict[str, Any]:
        """One of the ``followers`` of a partition in status."""
        last = self.acknowledged.get(partition)
        seq = 0 if last is None else last.ack.seq
        return {
            "placement_id": self.placement_id.hex(),
            "address": self.address,
            "seq": seq,
            "lag": partition.high_seq - seq,
            "since_ack_s": None if last is None else now - last.at,
            "votes": self.votes,
            "connected": partition in self.streams,
        }

    def summary(self, now: float) -> dict[str, Any]:
        """One of the ``replicas`` of a node in status: over all partitions that it has open."""
        lag = sum(p.high_seq - (self.acknowledged[p].ack.seq if p in self.acknowledged else 0) for p in self.streams)
        last = max((acknowledged.at for acknowledged in self.acknowledged.values()), default=None)
        return {
            "placement_id": self.placement_id.hex(),
            "address": self.address,
            "votes": self.votes,
            "partitions": len(self.streams),
            "lag": lag,
            "since_ack_s": None if last is None else now - last,
        }


class Replicas:
    """What a leader knows of those that follow it. Begins anew with every leadership."""

    def __init__(self, members: frozenset[str], majority: int) -> None:
        """``members``: the addresses of the others of the set, who alone may have a vote; empty outside of a set."""
        self.peers: dict[bytes, Peer] = {}
        self._members = members
        self._majority = majority
        self._quorums: dict[Partition, Acknowledgements] = {}
        self._watching: dict[Partition, Callable[[], None]] = {}

    def opened(self, replica: Replica, partition: Partition) -> Peer:
        """A stream of ``partition`` has been opened for ``replica``."""
        peer = self.peers.get(replica.placement_id)
        if peer is None:
            peer = self.peers[replica.placement_id] = Peer(replica)
        peer.address = replica.address
        peer.streams[partition] = peer.streams.get(partition, 0) + 1
        if self._members and partition not in self._quorums:
            self._watch(partition)
        self._set_vote(peer, replica.votes and replica.address in self._members)
        return peer

    def closed(self, peer: Peer, partition: Partition) -> None:
        """One of these streams is over."""
        left = peer.streams.pop(partition, 1) - 1
        if left:
            peer.streams[partition] = left
        if not peer.streams and not peer.votes and self.peers.get(peer.placement_id) is peer:
            del self.peers[peer.placement_id]

    def acknowledged(self, placement_id: bytes, partition: Partition, ack: ReplicaAck, now: float) -> None:
        """A replica holds ``partition`` as far as ``ack`` says. ProtocolError where nothing has come so far."""
        if ack.branch == partition.log.branch and ack.seq > partition.high_seq:
            raise ProtocolError(
                f"REPLICA_ACK: seq {ack.seq} of partition {partition.id}, which ends at {partition.high_seq}"
            )
        peer = self.peers.get(placement_id)
        if peer is None:
            return
        peer.acknowledged[partition] = Acknowledged(ack, now)
        if peer.votes:
            self._count(peer, partition, ack)

    def followers(self, partition: Partition) -> list[Peer]:
        """Those that stream ``partition``, or have."""
        return [p for p in self.peers.values() if partition in p.streams or partition in p.acknowledged]

    def voters(self) -> list[Peer]:
        """Those whose acknowledgements count."""
        return [peer for peer in self.peers.values() if peer.votes]

    def forget(self, partition: Partition) -> None:
        """A partition whose feed was dropped."""
        notify = self._watching.pop(partition, None)
        if notify is not None:
            partition.unwatch(Level.DISK, notify)
        self._quorums.pop(partition, None)
        for peer in self.peers.values():
            peer.acknowledged.pop(partition, None)

    def clear(self) -> None:
        """The node does not lead any more, or by another right: all have to come again."""
        for partition in list(self._watching):
            self.forget(partition)
        self.peers.clear()

    def _set_vote(self, peer: Peer, votes: bool) -> None:
        if votes == peer.votes:
            return
        peer.votes = votes
        if not votes:
            self._unvote(peer)
            return
        for other in list(self.peers.values()):
            if other is not peer and other.votes and other.address == peer.address:
                other.votes = False
                self._unvote(other)
                if not other.streams:
                    del self.peers[other.placement_id]
        for partition, last in peer.acknowledged.items():
            self._count(peer, partition, last.ack)

    def _unvote(self, peer: Peer) -> None:
        for acknowledgements in self._quorums.values():
            acknowledgements.forget(peer.placement_id)

    def _watch(self, partition: Partition) -> None:
        self._quorums[partition] = Acknowledgements(self._majority)

        def durable() -> None:
            self._move(partition)

        self._watching[partition] = durable
        partition.watch(Level.DISK, durable)

    def _count(self, peer: Peer, partition: Partition, ack: ReplicaAck) -> None:
        acknowledgements = self._quorums.get(partition)
        if acknowledgements is None:
            return
        if acknowledgements.acknowledged(peer.placement_id, ack.branch, ack.seq, partition.log):
            self._move(partition)

    def _move(self, partition: Partition) -> None:
        seq = self._quorums[partition].quorum_seq(partition.durable_seq, partition.log)
        if seq > partition.quorum_seq:
            partition.set_quorum_seq(seq)
