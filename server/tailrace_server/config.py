"""What an operator can set, and the bounds that hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.address import Address, check_cluster_name
from tailrace.wire.frames import FRAME_BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a peer can make the node hold or do. Each has its reason beside it."""

    # A block of the largest size with a WRITE's fixed part around it.
    frame_body_bytes_max: int = FRAME_BODY_BYTES_MAX
    # Descriptors and about 20 KiB each; more is a runaway client.
    connections_max: int = 4_096
    # A peer that sends requests and reads no answers: past this its requests wait.
    backlog_bytes_max: int = 8 * 1024 * 1024
    # The most that a consumer may ask to have under way, whatever it says in its HELLO.
    window_bytes_max: int = 64 * 1024 * 1024
    # Of one connection: 16 feeds of 1,024 partitions, and a barrier for each query of a busy index.
    streams_max: int = 16_384
    barriers_max: int = 4_096
    # Gets and conditional writes of one connection that wait for the index or the disk.
    waiting_requests_max: int = 1_024
    # Positions, logs and journal records grow with it; ids are 32-bit.
    partitions_max: int = 4_096
    feeds_max: int = 10_000
    # An idle connection says something this often; one that was silent for three times as long is dropped.
    noop_interval_s: float = 10.0
    # Who takes nothing of what is there for it, for so long, is shown as slow: longer than a program works at an event.
    slow_after_s: float = 5.0
    # HELLO has to come within this.
    hello_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Storage:
    """How much is held in memory and in the journal, and when it goes to segments. Sizes are bytes."""

    # All write queues together; at half of it the largest are flushed, at all of it writers wait.
    memory_bytes_max: int = 256 * 1024 * 1024
    # A write queue of this size is flushed: large enough that folding has few files to do with.
    segment_bytes: int = 16 * 1024 * 1024
    # What is older is flushed, however little it is, so that the journal can be trimmed.
    flush_age_s: float = 600.0
    # A file of the journal: small enough that trimming frees space soon.
    journal_file_bytes_max: int = 64 * 1024 * 1024
    # Where the journal is longer, what its oldest file waits for is flushed: bounds the start after a crash to seconds.
    journal_bytes_max: int = 512 * 1024 * 1024
    # Likewise if it has more records: each costs a start 4 to 7 µs, however small it is. More than the blocks that one
    # file can have, since only whole files are let go of.
    journal_records_max: int = 500_000
    # Kept allocated, to flush with on a full disk; 0: nothing is.
    reserve_bytes: int = 64 * 1024 * 1024
    # With less space than this no write is taken: a flush, a compaction and the manifests still find room.
    free_bytes_min: int = 128 * 1024 * 1024
    # Segments that have a descriptor while they are not being read, out of any number: more would only save an open.
    # `tailrace serve` takes a quarter of the descriptors that the process may have, if that is less.
    segments_open_max: int = 2_048
    # Stages that nobody has published yet: as many as the tasks of some large jobs have, and their bytes together.
    stages_max: int = 4_096
    stage_bytes_max: int = 8 * 1024 * 1024 * 1024
    # Of these so much is kept in memory too, to be published without reading it again: several tasks' share of a batch.
    stage_kept_bytes_max: int = 128 * 1024 * 1024
    # A stage goes after so long, in which the node was up: far longer than a batch takes with a restart of its job.
    stage_age_s: float = 86_400.0
    # Given to compactions while writes come, in bytes a second; 0: no limit. Without writes there is none.
    compaction_rate: int = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Replication:
    """How nodes of a set wait for each other. Seconds of the monotonic clock."""

    # Without a leader the others are asked again after this, with a leader about as often.
    poll_s: float = 0.3
    # A short question to another node: one that has not answered by then is taken for unreachable.
    ask_timeout_s: float = 1.0
    # A step of a promotion or handover that another one has to do something durable for.
    step_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Config:
    """Where a node keeps its data and where it listens; None: that door stays shut. Port 0: any free one."""

    data: str
    listen: tuple[str, int] = ("127.0.0.1", 4700)
    http: tuple[str, int] | None = ("127.0.0.1", 4780)
    ws: tuple[str, int] | None = ("127.0.0.1", 4790)
    limits: Limits = field(default_factory=Limits)
    storage: Storage = field(default_factory=Storage)
    # The directory is a copy of another node's: it starts as one that ``tailrace restore`` has made.
    restored: bool = False
    # The node follows that one, without a vote.
    replica_of: Address | None = None
    # The node is one of this set: two or more addresses, the same ones in the same order at all of them, ``listen``
    # among them.
    members: tuple[Address, ...] = ()
    # The name of the cluster, which clients may name in their URLs; "": it has none.
    cluster: str = ""
    replication: Replication = field(default_factory=Replication)

    def __post_init__(self) -> None:
        """ValueError where the node's place among others contradicts itself."""
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
            if self.listen not in self.members:
                raise ValueError(f"the members have to include this node's own address, {Address(*self.listen)}")

    @property
    def is_alone(self) -> bool:
        """It leads, always: there is nobody to follow."""
        return self.replica_of is None and not self.members
