"""The nouns that users, the wire and the server share. Plain immutable values; nothing here does I/O."""

from __future__ import annotations

import enum
import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from tailrace.model.failover import FailoverLog

FEED_ID_BYTES = 16

# The words that calls take, for type checkers. A call checks them, too.
#: The levels: how far a write has come when it is acknowledged, or a mutation when it is delivered.
LevelName: TypeAlias = Literal["memory", "disk", "quorum"]
#: The levels at which a stage is sealed.
SealLevel: TypeAlias = Literal["disk", "quorum"]
#: The nodes that a client asks.
NodeState: TypeAlias = Literal["leader", "follower", "any"]
#: The roles of a node for a partition.
PartitionRole: TypeAlias = Literal["leader", "follower"]
#: The states of a partition's stream, as the consumer sees it.
StreamState: TypeAlias = Literal[
    "waiting",
    "requested",
    "open",
    "in snapshot",
    "copying segments",
    "rolling back",
    "refetching",
    "measuring",
    "ended",
]
#: The roles of a token: what it permits.
TokenRole: TypeAlias = Literal["read", "write", "admin", "replica"]
#: The kinds of retention of a feed.
Retention: TypeAlias = Literal["compact", "history"]
#: The ways to replicate a feed.
ReplicationMode: TypeAlias = Literal["stream", "segment"]
#: The answers of a consumer to a rollback.
OnRollback: TypeAlias = Literal["follow", "stop", "restart"]
#: The answers of a consumer to rows that are gone.
OnDataGone: TypeAlias = Literal["raise", "restart"]
#: The ways to catch up.
CatchUpMode: TypeAlias = Literal["auto", "segments", "stream"]


class Level(enum.IntEnum):
    """The durability of a write when it is acknowledged, or of a mutation when a stream shows it."""

    MEMORY = 0
    DISK = 1
    QUORUM = 2

    @classmethod
    def parse(cls, text: str) -> Level:
        """Returns the level ``"memory"``, ``"disk"`` or ``"quorum"``. Raises ValueError for anything else."""
        try:
            return cls[text.upper()]
        except (KeyError, AttributeError):  # the latter: no text
            raise ValueError(f"level {text!r} is none of 'memory', 'disk', 'quorum'") from None


class EndReason(enum.Enum):
    """The reason that a stream of a partition ended. The value is its name on the wire."""

    END_REACHED = "end_reached"
    CLOSED = "closed"
    NOT_MY_PARTITION = "not_my_partition"
    WRONG_STATE = "wrong_state"
    HISTORY_CHANGED = "history_changed"
    ROLLED_BACK = "rolled_back"
    BEHIND = "behind"
    PURGED = "purged"
    TRIMMED = "trimmed"
    DRAINING = "draining"
    TOO_SLOW = "too_slow"
    FORBIDDEN = "forbidden"
    FEED_DROPPED = "feed_dropped"
    DAMAGED = "damaged"
    ERROR = "error"


class Put(NamedTuple):
    """A change that sets a value.

    Attributes:
        key: 1 to 4,096 bytes.
        value: At most 16 MiB.
        ttl: The seconds after which the key expires, 1 to 315,360,000 (ten years); None: those of the feed, or never.
    """

    key: bytes
    value: bytes
    ttl: int | None = None


class Delete(NamedTuple):
    """A change that deletes a key.

    Attributes:
        key: 1 to 4,096 bytes.
    """

    key: bytes


class Mutation(NamedTuple):
    """A change as a stream delivers it.

    Attributes:
        key: 1 to 4,096 bytes.
        value: The new value; None if ``deleted``, or if the stream has only keys.
        seq: The number in its partition, rising.
        timestamp: When the node accepted it, in microseconds since 1970 UTC.
        deleted: True for a deletion.
        expired: True for the deletion of a key whose ttl was over; False for one by a writer.
    """

    key: bytes
    value: bytes | None
    seq: int
    timestamp: int
    deleted: bool
    expired: bool = False

    @property
    def version(self) -> Version:
        """The version, for example for ``if_version`` of `tailrace.Feed.put`.

        Raises:
            ValueError: A program has made this object; only a stream knows partition and branch.
        """
        place: tuple[int, bytes] | None = getattr(self, "_place", None)
        if place is None:
            raise ValueError(f"the version of the mutation at seq {self.seq} is not known: no stream has delivered it")
        return Version(*place, self.seq)


class Version(NamedTuple):
    """The name of one mutation, for ever.

    Attributes:
        partition: The partition, from 0.
        branch: The branch of its history, 16 bytes.
        seq: The number in the partition.
    """

    partition: int
    branch: bytes
    seq: int

    def __str__(self) -> str:
        return f"seq {self.seq} of branch {self.branch.hex()} of partition {self.partition}"


@functools.lru_cache(maxsize=4_096)
def mutations_of(partition: int, branch: bytes) -> type[Mutation]:
    """Returns the class of the mutations of a branch, which know their version.

    An object then costs no more than one that does not know it: there is one for each row.
    """

    def reduce(self: Mutation) -> tuple[Any, ...]:
        return _mutation, (partition, branch, tuple(self))

    body = {"__slots__": (), "_place": (partition, branch), "__reduce__": reduce, "__module__": __name__}
    return type("Mutation", (Mutation,), body)


def _mutation(partition: int, branch: bytes, fields: tuple[Any, ...]) -> Mutation:
    """Returns a mutation that was pickled or copied."""
    return mutations_of(partition, branch)(*fields)


class VersionRange(NamedTuple):
    """The versions of the mutations of one block.

    Attributes:
        partition: The partition, from 0.
        branch: The branch of its history, 16 bytes.
        first_seq: The seq of the first mutation.
        last_seq: The seq of the last mutation, included.
    """

    partition: int
    branch: bytes
    first_seq: int
    last_seq: int


class Item(NamedTuple):
    """The current value of a key.

    Attributes:
        key: 1 to 4,096 bytes.
        value: At most 16 MiB.
        version: The version of the mutation that set it.
        timestamp: When the node accepted it, in microseconds since 1970 UTC.
    """

    key: bytes
    value: bytes
    version: Version
    timestamp: int


class PartitionInfo(NamedTuple):
    """A partition of a feed.

    Attributes:
        id: The partition, from 0.
        hash_first: The first key hash that it owns.
        hash_last: The last key hash that it owns, included.
        state: The role of the node for it, "leader" or "follower".
        term: The term of its newest branch.
        leader: The address of the leader, "" if the node knows none.
        replicas: The addresses of the other members.
        high_seq: The newest seq in memory.
        durable_seq: The newest seq on the node's disk.
        log: The failover log: the branches of its history, the newest first.
    """

    id: int
    hash_first: int
    hash_last: int
    state: PartitionRole
    term: int
    leader: str
    replicas: tuple[str, ...]
    high_seq: int
    durable_seq: int
    log: FailoverLog


class FeedInfo(NamedTuple):
    """A feed with its settings, as `Client.feeds` returns it.

    Attributes:
        name: The name.
        feed_id: The id, 16 random bytes. A feed that is dropped and created again has another id.
        partitions: The number of partitions.
        keyspace: "hash".
        retention: "compact" or "history".
        history_age_s: The seconds that a history keeps a mutation at least; None: for ever.
        history_bytes: The bytes that a history keeps at least, an even share in each partition; None: all.
        tombstone_age_s: The seconds that a deletion is kept at least.
        replication: "stream" or "segment".
        level: "memory", "disk" or "quorum": the level of writes that name none; None: the default of the node.
        ttl_s: The seconds after which a key expires whose put names no ttl; None: it does not.
    """

    name: str
    feed_id: bytes
    partitions: int
    keyspace: str
    retention: Retention
    history_age_s: float | None
    history_bytes: int | None
    tombstone_age_s: float
    replication: ReplicationMode
    level: LevelName | None = None
    ttl_s: float | None = None


class TokenInfo(NamedTuple):
    """A token as a node lists it, without its secret; or the rights of a certificate.

    Attributes:
        name: The name.
        role: "read", "write", "admin" or "replica".
        feeds: The names of the feeds that it may use; empty: all.
        key_prefix: The keys that it may use begin with this; empty: all.
        created_at: When it was created, in microseconds since 1970 UTC.
        expires_at: When it expires, in microseconds since 1970 UTC; None: never.
        token_id: The id, 8 random bytes, which is a part of the token.
        certificate: The name of the certificate that has these rights, as ``CN=orders``; empty: a token has them.
    """

    name: str
    role: TokenRole
    feeds: tuple[str, ...]
    key_prefix: bytes
    created_at: int
    expires_at: int | None
    token_id: bytes
    certificate: str = ""


class Resolved(NamedTuple):
    """The id of a feed and its number of partitions: a client needs both to write."""

    feed_id: bytes
    partitions: int


class NodeStatus(NamedTuple):
    """The status of a node, as it reports it.

    Attributes:
        software: The name and version of the server.
        node_id: The id of the node, 16 bytes.
        cluster_id: The id of the cluster, 16 bytes.
        healthy: False if the node has a problem; ``details`` names it.
        uptime_s: The seconds since the node was started.
        details: The whole status, with the members of ``/api/status``.
    """

    software: str
    node_id: bytes
    cluster_id: bytes
    healthy: bool
    uptime_s: float
    details: dict[str, Any]
