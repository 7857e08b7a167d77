"""The configuration of a node, and its bounds.

A field that `setting` makes can be set by a user: in a file, in the environment, or by an option (node/settings.py).
Its comment says what it bounds and why; the reference of all settings takes it from here.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tailrace.link.address import Address, check_cluster_name
from tailrace.model.quantities import Unit
from tailrace.wire.frames import FRAME_BODY_BYTES_MAX
from tailrace_server.setting import GIB, KIB, MIB, adopt_reloaded, setting

# The divisor of a low bound of connections for those that clients leave to other nodes.
NODES_SHARE = 4


@dataclass(slots=True)
class Limits:
    """Bounds on the memory and work that a peer can cause, each with its reason.

    All parts of a node share one object and read it at each use, so that `adopt` changes the bounds of a running node.
    """

    #: The bytes of a frame's body. A block of the largest size, with the fixed part of a WRITE around it.
    frame_body_bytes_max: int = FRAME_BODY_BYTES_MAX
    #: The open connections. Each costs a descriptor and about 12 KiB, and a stream 1 KiB. More than this is a runaway
    #: client.
    connections_max: int = setting(4_096, least=8, reloads=True)
    #: The connections that clients leave to other nodes, since a failover needs a few for each member. At most a
    #: quarter of all connections.
    node_connections: int = setting(64, least=0, reloads=True)
    #: The open connections of one address. Loopback has no bound of its own, since programs of the machine share it.
    connections_per_address_max: int = setting(1_024, least=1, reloads=True)
    #: The connections that have not greeted yet. Above it the oldest of them ends.
    greetings_max: int = setting(512, least=1, reloads=True)
    #: The open WebSockets, of tails and of frames. A page that reads slowly may take 2 MiB.
    websocket_connections_max: int = setting(512, least=1, most=16_384)
    #: The bytes of unread answers at which a peer's further requests wait.
    backlog_bytes_max: int = setting(8 * MIB, Unit.BYTES, least=64 * KIB, reloads=True)
    #: The bytes of answers that all connections hold together. Above it a connection with more than 64 KiB waits, and
    #: look-ups that wait for the disk answer with what they have found. As much as all write queues.
    answer_bytes_max: int = setting(256 * MIB, Unit.BYTES, least=MIB)
    #: The largest window that a consumer gets, whatever its HELLO asks for.
    window_bytes_max: int = setting(64 * MIB, Unit.BYTES, least=64 * KIB, reloads=True)
    #: The streams of one connection, enough for 16 feeds of 1,024 partitions.
    streams_max: int = setting(16_384, least=1, reloads=True)
    #: The open barriers of one connection, enough for one with each query of a busy index.
    barriers_max: int = setting(4_096, least=1, reloads=True)
    #: The gets and conditional writes of one connection that wait for the index or the disk.
    waiting_requests_max: int = setting(1_024, least=1, reloads=True)
    #: The parts of segments that one connection asks for at a time. A part has 1 MiB at most, and takes memory
    #: only while it is read from the disk.
    waiting_fetches_max: int = setting(64, least=1, reloads=True)
    #: The checkpoints whose files are kept at a time, one for each partition of the largest feed.
    checkpoints_max: int = setting(4_096, least=1, reloads=True)
    #: The seconds for which a checkpoint's files are kept after the last fetch of one.
    checkpoint_kept_s: float = setting(60.0, Unit.SECONDS, least=1, reloads=True)
    #: The bytes of replaced segments that are kept on the disk for checkpoints only. Above it, and if the disk is
    #: nearly full, the checkpoints that were not used for longest are dropped.
    checkpoint_kept_bytes_max: int = setting(16 * GIB, Unit.BYTES, least=0, reloads=True)
    #: The segments that a node receives from its leader at a time. Each takes a descriptor, and a part of 1 MiB.
    incoming_segments_max: int = setting(16, least=1)
    #: The least seconds between two flushes of a partition for checkpoints, which bounds the number of small segments.
    checkpoint_flush_s: float = setting(1.0, Unit.SECONDS, least=0, reloads=True)
    #: The partitions of a feed. Positions, failover logs and journal records grow with it.
    partitions_max: int = setting(4_096, least=1, most=4_096, reloads=True)
    #: The feeds of a node.
    feeds_max: int = setting(10_000, least=1, reloads=True)
    #: The seconds after which an idle connection sends a NOOP. A peer silent for three times as long is dropped.
    noop_interval_s: float = setting(10.0, Unit.SECONDS, least=0.1, most=3_600)
    #: The seconds without progress after which a consumer is shown as slow. Programs work at one event for less.
    slow_after_s: float = setting(5.0, Unit.SECONDS, least=0.1, reloads=True)
    #: The seconds for which a named consumer that has gone is shown, with a lag that grows. A day leaves time to see an
    #: alert. 0: none is shown.
    stopped_consumer_kept_s: float = setting(86_400.0, Unit.SECONDS, least=0, reloads=True)
    #: The partitions of named consumers and groups of which a position is kept, in all feeds together. Each takes 1 KB.
    consumer_partitions_max: int = setting(65_536, least=1, reloads=True)
    #: The seconds for which a member of a group owns its partitions after its last sign of life. Members send one in a
    #: quarter of it. A program that handles events without async has to ask for the next one more often.
    group_lease_s: float = setting(10.0, Unit.SECONDS, least=0.1, most=3_600, reloads=True)
    #: The seconds within which a member has to release partitions that another one is to have. Then it loses them.
    group_release_s: float = setting(60.0, Unit.SECONDS, least=0.1, reloads=True)
    #: The seconds for which a node polls before it sleeps, while that finds the next request. A request takes at most
    #: as much processor time more. A processor that sleeps takes some 30 µs to wake. With 0, or with one processor, it
    #: never polls.
    busy_poll_s: float = setting(0.00005, Unit.SECONDS, least=0, most=0.01)
    #: The seconds within which HELLO has to come.
    hello_timeout_s: float = setting(10.0, Unit.SECONDS, least=0.1, most=3_600, reloads=True)

    def adopt(self, new: Limits) -> None:
        """Takes over those limits of ``new`` that can change while a node runs."""
        adopt_reloaded(self, new)

    @property
    def client_connections_max(self) -> int:
        """The open connections of clients; the others are for nodes."""
        return self.connections_max - min(self.node_connections, self.connections_max // NODES_SHARE)


@dataclass(slots=True)
class StorageConfig:
    """How much is held in memory and in the journal, and when it goes to segments.

    The parts of a node that copy a value when they are made take a new one in ``Storage.limits_changed``.
    """

    #: The bytes of all write queues. At half of it the largest are flushed; at all of it writers wait.
    memory_bytes_max: int = setting(256 * MIB, Unit.BYTES, least=8 * MIB)
    #: The bytes at which a write queue is flushed. Large enough that compaction has few files to merge.
    segment_bytes: int = setting(16 * MIB, Unit.BYTES, least=64 * KIB, reloads=True)
    #: The seconds after which a block is flushed, however small its queue is, so that the journal can be trimmed.
    flush_age_s: float = setting(600.0, Unit.SECONDS, least=1, reloads=True)
    #: The seconds after which a block of a feed in replication mode ``segment`` is flushed. Followers get it then; each
    #: flush makes a segment.
    pushed_age_s: float = setting(5.0, Unit.SECONDS, least=0.1, reloads=True)
    #: The bytes of a journal file. Small enough that trimming frees space soon.
    journal_file_bytes_max: int = setting(64 * MIB, Unit.BYTES, least=64 * KIB)
    #: The bytes of the journal above which the partitions of its oldest file are flushed. Bounds a restart to seconds.
    journal_bytes_max: int = setting(512 * MIB, Unit.BYTES, least=MIB, reloads=True)
    #: The seconds that a restart may take to read the journal (journal/replay_cost.py) before the same happens. 2.1 s
    #: are 280,000 blocks of single puts, or 65,000 publishes. The journal grows during the flush; a restart should take
    #: 5 s at most.
    journal_replay_s: float = setting(2.1, Unit.SECONDS, least=0.1, reloads=True)
    #: The bytes that are kept allocated so that a flush succeeds on a full disk. 0 keeps nothing.
    reserve_bytes: int = setting(64 * MIB, Unit.BYTES, least=0)
    #: The free bytes below which writes are refused, so that flushes, compactions and manifests find room.
    free_bytes_min: int = setting(128 * MIB, Unit.BYTES, least=0, reloads=True)
    #: The segments that stay open while they are not read. ``tailrace serve`` uses a quarter of its
    #: descriptors if that is less.
    segments_open_max: int = setting(2_048, least=1)
    #: The bytes of segments, and of compressed blocks of write queues, that look-ups by key keep in memory, opened and
    #: verified. 0 keeps none.
    read_cache_bytes: int = setting(128 * MIB, Unit.BYTES, least=0)
    #: The bytes of the largest share of a batch that a partition takes at once. A larger one comes in parts, since a
    #: record of the journal has at most 64 MiB.
    publish_bytes_max: int = setting(60 * MIB, Unit.BYTES, least=KIB, most=60 * MIB)
    #: The unpublished stages, as many as the tasks of some large Spark jobs have.
    stages_max: int = setting(4_096, least=1, reloads=True)
    #: The bytes of all unpublished stages.
    stage_bytes_max: int = setting(8 * GIB, Unit.BYTES, least=MIB, reloads=True)
    #: The bytes of stages that are also kept in memory, so that publishing does not read them again.
    stage_kept_bytes_max: int = setting(128 * MIB, Unit.BYTES, least=0, reloads=True)
    #: The seconds of uptime after which an unpublished stage is dropped, far more than a batch needs.
    stage_age_s: float = setting(86_400.0, Unit.SECONDS, least=60, reloads=True)
    #: The bytes per second that compactions may read and write while writes come in. 0 is no bound.
    compaction_rate: int = setting(20 * MIB, Unit.RATE, least=0, reloads=True)
    #: The bytes per second of segments that are compared with their checksums, so that damage is found before the node
    #: comes to lead. 4 MiB take 0.3 % of a processor, and 100 GB seven hours. 0: none are.
    check_rate: int = setting(4 * MIB, Unit.RATE, least=0, reloads=True)
    #: The seconds between two such passes over all segments.
    check_pause_s: float = setting(86_400.0, Unit.SECONDS, least=0, reloads=True)

    def adopt(self, new: StorageConfig) -> None:
        """Takes over those settings of ``new`` that can change while a node runs."""
        adopt_reloaded(self, new)


class Failover(enum.StrEnum):
    """Who makes another member the leader if the leader is gone."""

    AUTO = "auto"
    """The members themselves."""
    MANUAL = "manual"
    """An operator, by ``tailrace promote``."""


@dataclass(slots=True)
class Replication:
    """How the nodes of a set wait for each other, in seconds of the monotonic clock.

    All parts of a node share one object and read it at each use.
    """

    #: Who makes another member of a set the leader.
    failover: Failover = Failover.AUTO
    #: The interval at which a leader that fails over by itself asks its replicas whether they follow it.
    heartbeat_s: float = setting(0.3, Unit.SECONDS, least=0.01, reloads=True)
    #: The silence after which a leader counts as gone. Longer than garbage collections and slow fsyncs of a busy disk.
    leader_timeout_s: float = setting(1.5, Unit.SECONDS, least=0.05, reloads=True)
    #: The time without a majority after which a leader takes no writes.
    majority_timeout_s: float = setting(3.0, Unit.SECONDS, least=0.05, reloads=True)
    #: The time after which an fsync that has not ended makes a leader step down.
    disk_timeout_s: float = setting(5.0, Unit.SECONDS, least=0.05, reloads=True)

    #: The interval at which the other members are asked for their state.
    poll_s: float = setting(0.3, Unit.SECONDS, least=0.01, reloads=True)
    #: The time after which a member that has not answered a short question counts as unreachable.
    ask_timeout_s: float = setting(1.0, Unit.SECONDS, least=0.05, reloads=True)
    #: The time for one step of a promotion or handover that another member makes durable.
    step_timeout_s: float = setting(5.0, Unit.SECONDS, least=0.1, reloads=True)
    #: The bytes of a partition's rows that a follower lacks, from which it copies segments first. Below them a stream
    #: is as fast, since it needs no flush. Off: it always streams.
    catch_up_bytes_min: int | None = setting(16 * MIB, Unit.BYTES, least=0, reloads=True)

    def adopt(self, new: Replication) -> None:
        """Takes over those times of ``new`` that can change while a node runs."""
        adopt_reloaded(self, new)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The files of a node that speaks TLS, in PEM.

    Raises ValueError if they contradict each other.
    """

    #: The node's certificate, with those between it and its authority.
    cert: str
    #: The private key of the certificate. If it is empty, the key is in the same file.
    key: str = ""
    #: The authorities of clients' certificates. Without any, clients show none.
    client_ca: str = ""
    #: Whether each client has to show a certificate.
    require_client_cert: bool = False
    #: The authorities of other nodes' certificates; by default those of clients, or else of the machine.
    peer_ca: str = ""

    def __post_init__(self) -> None:
        if not self.cert:
            raise ValueError("TLS needs --tls-cert: a certificate")
        if self.require_client_cert and not self.client_ca:
            raise ValueError(
                "--tls-require-client-cert needs --tls-client-ca: the authorities of clients' certificates"
            )

    @property
    def node_ca(self) -> str:
        """The authorities of other nodes' certificates; empty without any."""
        return self.peer_ca or self.client_ca

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, each once."""
        return tuple(dict.fromkeys(filter(None, (self.cert, self.key, self.client_ca, self.peer_ca))))


@dataclass(frozen=True, slots=True)
class Config:
    """The data directory of a node, its addresses, and its place among other nodes.

    An address of None opens no listener. Port 0 takes any free port.
    """

    #: The data directory.
    data: str
    #: The address for clients and other nodes.
    listen: tuple[str, int] = ("127.0.0.1", 4700)
    #: The address of status and console.
    http: tuple[str, int] | None = ("127.0.0.1", 4780)
    #: The address for tailing over WebSocket.
    ws: tuple[str, int] | None = ("127.0.0.1", 4790)
    #: Bounds on peers.
    limits: Limits = field(default_factory=Limits)
    #: Memory, journal and segments.
    storage: StorageConfig = field(default_factory=StorageConfig)
    #: True if the directory is a copy of another node's. The node begins new branches, as after ``tailrace restore``.
    restored: bool = False
    #: The node that this one follows without a vote.
    replica_of: Address | None = None
    #: The addresses of the set, two or more, ``listen`` among them. All members name the same ones in the same order.
    members: tuple[Address, ...] = ()
    #: The name of this node among ``members``, if that is not ``listen``: it has moved since the set was founded.
    member_name: Address | None = None
    #: Whether this node may found the set, if all members are new. False if the set is known to be founded.
    may_found: bool = True
    #: The name of the cluster, which URLs of clients may contain. An empty name is none.
    cluster: str = ""
    #: Whether clients and nodes have to present a token.
    auth: bool = False
    #: The secret that this node presents to others, and that it accepts from them; None for none.
    peer_token: str | None = field(default=None, repr=False)
    #: The certificates of the listeners, and of connections to other nodes. Without any, no listener speaks TLS.
    tls: TlsConfig | None = None
    #: The times of replication.
    replication: Replication = field(default_factory=Replication)

    def __post_init__(self) -> None:
        """Raises ValueError if the node's place among others contradicts itself."""
        if self.cluster:
            check_cluster_name(self.cluster)
        if self.members and self.replica_of is not None:
            raise ValueError("a node is a replica of another one or a member of a set, not both")
        if self.replica_of is not None and self.replica_of == self.listen:
            raise ValueError(f"a node cannot be a replica of itself: {self.replica_of}")
        if self.members:
            if len(set(self.members)) != len(self.members):
                raise ValueError("a set of members names one of them twice")
            if len(self.members) < 2:
                raise ValueError("a set has two members or more; a node alone needs none to be named")
            if self.named not in self.members:
                raise ValueError(f"the members have to include this node's own address, {Address(*self.listen)}")

    @property
    def named(self) -> Address:
        """The address by which a member is named in ``members``."""
        return Address(*self.listen) if self.member_name is None else self.member_name

    @property
    def has_tls(self) -> bool:
        """True if all listeners speak TLS, and nothing else."""
        return self.tls is not None

    @property
    def is_alone(self) -> bool:
        """True if the node has no others to follow and always leads."""
        return self.replica_of is None and not self.members
