"""The frames to a replica besides its blocks: the leader's seqs, and the question whether it still follows.

Both are coalesced: the newest seqs of each stream go out with the next blocks, or soon without any. If the replica does
not read, they wait until it does.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from tailrace.errors import NotLeader, ProtocolError
from tailrace.model import Level
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import LeaderSeqs, Replica, ReplicaAck
from tailrace.wire.stream_messages import encode_number
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.replication.replicas import Peer
from tailrace_server.serving.segment_offers import SegmentOffers
from tailrace_server.stream.replication_stream import ReplicationStream, SegmentStream

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.serving.segment_sender import SendingConnection


class _Served:
    __slots__ = ("peer", "stream", "told")

    def __init__(self, stream: ReplicationStream, peer: Peer) -> None:
        self.stream = stream
        self.peer = peer
        self.told = (0, 0)


class ServedReplica:
    """The streams of one connection that a replica follows its leader by. All of them are of one group."""

    def __init__(self, connection: SendingConnection, leadership: Leadership) -> None:
        """``leadership``: of the group. LEADER_CHECK and its answer do not name one."""
        self._connection = connection
        self.leadership = leadership
        self.start: bytes | None = None  # the token of the replica's process; None before its first stream
        self.offers = SegmentOffers(connection)
        self._served: dict[int, _Served] = {}
        self._peers: collections.Counter[Peer] = collections.Counter()  # with the number of their streams
        self._asked_beside: set[int] = set()  # the streams beside which the replica is asked
        self._news: dict[int, None] = {}  # streams whose seqs may have moved
        self._question: int | None = None
        self._asked: int | None = None

    def open(self, stream: ReplicationStream, replica: Replica) -> None:
        """``stream``, of a partition of the group, has begun.

        The replica is asked whether it follows while it streams ``_feeds``; in a group that lacks ``_feeds``, while it
        streams anything.
        """
        partition, id, leadership = stream.partition, stream.id, self.leadership
        self.start = replica.start
        is_asked_beside = partition.feed_id == SYSTEM_FEED_ID or not leadership.group.lists_feeds
        peer = leadership.replicas.opened(replica, partition, takes_ttls=self._connection.takes_ttls)
        self._served[id] = _Served(stream, peer)
        self._peers[peer] += 1

        def moved() -> None:
            self._news[id] = None
            self._connection.has_later_replica_news()

        def closed() -> None:
            partition.watchers.unwatch(Level.DISK, moved)
            partition.watchers.unwatch(Level.QUORUM, moved)
            del self._served[id]
            self._peers[peer] -= 1
            if not self._peers[peer]:
                del self._peers[peer]
            self._news.pop(id, None)
            if id in self._asked_beside:
                self._asked_beside.remove(id)
                if not self._asked_beside:
                    peer.remove_connection(self)
            leadership.replicas.closed(peer, partition)

        stream.when_closed(closed)
        if isinstance(stream, SegmentStream):
            self.offers.open(stream, replica.placement_id)
        partition.watchers.watch(Level.DISK, moved)
        partition.watchers.watch(Level.QUORUM, moved)
        moved()
        if is_asked_beside:
            self._asked_beside.add(id)
            peer.add_connection(self)
            if peer.votes and leadership.confirmations.under_way:
                self.ask(leadership.confirmations.number)

    def ask(self, number: int) -> None:
        """Asks the replica whether it still follows this leader; a later question takes the place of an earlier one."""
        self._question = number
        self._connection.has_replica_news()

    def end(self, message: str) -> None:
        """Ends the connection of the replica, which looks for a leader then."""
        self._connection.fail(NotLeader(message))

    def acknowledged(self, id: int, ack: ReplicaAck) -> None:
        """REPLICA_ACK on stream ``id``; it may be over by now. ProtocolError."""
        served = self._served.get(id)
        if served is None:
            return
        partition = served.stream.partition
        if ack.partition != partition.id:
            raise ProtocolError(f"REPLICA_ACK: partition {ack.partition} on a stream of partition {partition.id}")
        if not self.leadership.replicas.is_current(served.peer):
            return  # another process on its directory follows since, or this node leads anew
        self.leadership.acknowledged(served.peer.placement_id, partition, ack, self._connection.node.turn.now)

    def confirmed(self, number: int) -> None:
        """Takes a LEADER_CONFIRM: the replica has promised no other leader. Ignores answers to older questions."""
        if number != self._asked:
            return
        for peer in list(self._peers):
            if peer.votes:
                self.leadership.confirmations.answered(peer.placement_id, number)

    def frames(self) -> list[bytes]:
        """Returns the frames to send now, after the blocks."""
        frames = self.offers.take_frames()
        if self._question is not None:
            frames.append(encode_number(Opcode.LEADER_CHECK, self._question))
            self._asked, self._question = self._question, None
        news, self._news = self._news, {}
        for id in news:
            served = self._served[id]
            partition = served.stream.partition
            seqs = (partition.durable_seq, partition.quorum_seq)
            if seqs != served.told:
                served.told = seqs
                frames.append(LeaderSeqs(partition.id, *seqs).encode(id))
        return frames
