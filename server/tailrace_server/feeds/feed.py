"""A feed as a node holds it: its settings and its partitions."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from tailrace.block.arrays import U64
from tailrace.block.header import TIMESTAMP_MAX, TTL_S_MAX
from tailrace.errors import Forbidden, ProtocolError, TailraceError
from tailrace.model import FeedInfo, Level, ReplicationMode
from tailrace.model.failover import FailoverLog
from tailrace.model.hashing import key_hash, partition_begin, partition_of_hash, partition_range
from tailrace_server.feeds.feed_settings import LEVELS, NO_FLOORS, Floors, level_of, loosest
from tailrace_server.partition.branching import with_branch
from tailrace_server.partition.partition import Partition
from tailrace_server.state.memory import MemoryAccount

FEED_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
# Ages become microseconds of 64 bits: 292,000 years.
AGE_S_MAX = TIMESTAMP_MAX // 1_000_000
HISTORY_BYTES_MAX = 2**63 - 1

STREAM_MODE, SEGMENT_MODE = REPLICATION_MODES = ("stream", "segment")

# The feed that lists the others; clients may read it. Its name is not valid for a client's feed.
SYSTEM_FEED_ID = bytes(15) + b"\x01"
SYSTEM_FEED_NAME = "_feeds"
SYSTEM_FEED = FeedInfo(SYSTEM_FEED_NAME, SYSTEM_FEED_ID, 1, "hash", "compact", None, None, 259_200, "stream")


class Feed:
    """A feed and its partitions, in the order of their ids."""

    def __init__(
        self, info: FeedInfo, first_branch: bytes, partitions: list[Partition], floors: Floors = NO_FLOORS
    ) -> None:
        self.info = info
        self._level: Level | None = None  # of a write that names none; None: the safest one
        self.floors = floors  # before which time earlier settings may have dropped rows
        self._kept: FeedInfo | None = None  # the settings that retention goes by until the newest ones cannot be lost
        self.first_branch = first_branch
        self.partitions = partitions
        self._begins: U64 | None = None  # the first hash of each partition but the first one, once keys are looked up
        self.replicate(info.replication)

    @classmethod
    def of(cls, info: FeedInfo, first_branch: bytes, account: MemoryAccount) -> Feed:
        """Returns a feed with empty partitions, all of them on ``first_branch`` (16 bytes)."""
        ranges = (partition_range(number, info.partitions) for number in range(info.partitions))
        log = with_branch(FailoverLog(), first_branch, 0)  # one for all partitions: it is immutable
        partitions = [
            Partition(info.feed_id, number, *range_, account, log=log, feed_name=info.name)
            for number, range_ in enumerate(ranges)
        ]
        return cls(info, first_branch, partitions)

    @property
    def by_segments(self) -> bool:
        """Whether the feed is in replication mode ``segment``: followers get its segments instead of its rows."""
        return self.info.replication == SEGMENT_MODE

    def set(self, info: FeedInfo, floors: Floors) -> None:
        """Changes the settings. If the mode differs, the caller ends the streams that replicas have of the feed."""
        self._kept = loosest(self._kept or self.info, info)
        self.info, self.floors = info, floors
        self.replicate(info.replication)

    def retention(self, stable_seq: int) -> FeedInfo:
        """Returns the settings by which rows may be dropped now.

        A failover may lose a change whose row of ``_feeds`` is above ``stable_seq``. Until then no row is dropped that
        the settings before it keep.
        """
        if self._kept is not None and self.partitions[0].listed_seq <= stable_seq:
            self._kept = None
        return self.info if self._kept is None else self._kept

    def replicate(self, mode: ReplicationMode) -> None:
        """Sets the replication mode, "stream" or "segment". The caller ends the streams that replicas have of it."""
        self.info = self.info._replace(replication=mode)
        own = level_of(self.info)
        self._level = Level.DISK if own is None and self.by_segments else own
        for partition in self.partitions:
            partition.pushes.replicate(by_segments=self.by_segments)

    def default_level(self, safest: Level) -> Level:
        """Returns the level of a write that names none; ``safest`` is the highest level that the node gives.

        A feed's own level may be higher, if the node has left its set: ``write_level`` refuses it.
        """
        return safest if self._level is None else self._level

    def write_level(self, safest: Level) -> Level:
        """Returns the level of a write that names none. Raises Forbidden if the node cannot give the feed's own.

        That is final, and no NotDurable, for which a client asks other nodes: a node joins a set by a restart only.
        """
        level = self._level
        if level is None:
            return safest
        if level > safest:
            raise Forbidden(
                f"feed {self.info.name!r} has level {level.name.lower()}, which needs a set of nodes, and this node is "
                f"in none. Name level disk, or `tailrace feed set {self.info.name} --level default`"
            )
        return level

    def read_level(self, safest: Level) -> Level:
        """Returns the level at which the node itself shows the feed: that of its writes, if the node gives it."""
        return min(self.default_level(safest), safest)

    def require_quorum(self) -> None:
        """Raises Forbidden if the feed is replicated by segments: a majority would have a row only after its flush."""
        if self.by_segments:
            raise Forbidden(
                f"feed {self.info.name!r} is in replication mode segment: followers get its rows some seconds later, "
                "so level quorum is refused. Use level disk, or `tailrace feed set "
                f"{self.info.name} --replication stream`"
            )

    def partition_of(self, key: bytes) -> Partition:
        """Returns the partition that owns ``key``."""
        return self.partitions[partition_of_hash(key_hash(key), len(self.partitions))]

    def partitions_of(self, hashes: U64) -> list[Partition]:
        """Returns the partition that owns each of these hashes."""
        if self._begins is None:
            count = len(self.partitions)
            self._begins = np.array([partition_begin(number, count) for number in range(1, count)], "<u8")
        return list(map(self.partitions.__getitem__, self._begins.searchsorted(hashes, "right").tolist()))


def system_feed(account: MemoryAccount) -> Feed:
    """Returns the feed ``_feeds`` (feed_rows.py) of a new directory: empty, and without a branch."""
    partition = Partition(
        SYSTEM_FEED_ID, 0, *partition_range(0, 1), account, takes_writes=False, feed_name=SYSTEM_FEED.name
    )
    return Feed(SYSTEM_FEED, b"", [partition])


def info_to_json(info: FeedInfo) -> dict[str, Any]:
    """Returns the JSON of a feed's settings, for the wire."""
    return {**info._asdict(), "feed_id": info.feed_id.hex()}


def info_from_json(value: dict[str, Any]) -> FeedInfo:
    """Returns the settings in ``feed`` of such a record, unchecked: only for JSON that a node wrote."""
    return FeedInfo(**{**value, "feed_id": bytes.fromhex(value["feed_id"])})


def settings_of_creation(payload: bytes) -> tuple[FeedInfo, Floors]:
    """Returns the settings in such a record, or in a row of ``_feeds``."""
    value = json.loads(payload)
    level = value.get("level")  # a level that only later releases know counts as none: the default is the safest one
    ttl_s = value.get("ttl_s")  # likewise
    info = info_from_json(value["feed"])._replace(
        level=level if level in LEVELS else None, ttl_s=ttl_s if _is_ttl(ttl_s) else None
    )
    return info, Floors(**value.get("floors", {}))


def creation_to_bytes(info: FeedInfo, branch: bytes, floors: Floors = NO_FLOORS) -> bytes:
    """Returns the payload of the journal's record of a creation: the feed, and the first branch of its partitions.

    The row of ``_feeds`` of a feed that was changed has ``floors`` as well. A feed's own level and its ttl are beside
    ``feed``: earlier nodes ignore them there, and read the members of ``feed`` strictly.
    """
    settings = info_to_json(info)
    level, ttl_s = settings.pop("level"), settings.pop("ttl_s")
    more = {} if floors == NO_FLOORS else {"floors": floors._asdict()}
    if level is not None:
        more["level"] = level
    if ttl_s is not None:
        more["ttl_s"] = ttl_s
    return json.dumps({"feed": settings, "branch": branch.hex(), **more}).encode()


def feed_of_creation(payload: bytes, account: MemoryAccount) -> Feed:
    """Returns the feed, still empty, that such a record made."""
    info, floors = settings_of_creation(payload)
    feed = Feed.of(info, bytes.fromhex(json.loads(payload)["branch"]), account)
    feed.floors = floors
    return feed


def info_of_request(value: dict[str, Any], partitions_max: int) -> FeedInfo:
    """Returns the settings of a CREATE_FEED. Raises ProtocolError (missing ones), TailraceError (invalid ones)."""
    try:
        name, feed_id = value["name"], bytes.fromhex(value["feed_id"])
        partitions, keyspace = value.get("partitions", 16), value.get("keyspace", "hash")
        retention, replication = value.get("retention", "compact"), value.get("replication", "stream")
        ages = [value.get("history_age_s"), value.get("history_bytes"), value.get("tombstone_age_s", 259_200)]
    except (KeyError, ValueError, TypeError) as error:
        raise ProtocolError(f"CREATE_FEED: {error!r}") from None
    if len(feed_id) != 16:
        raise ProtocolError(f"CREATE_FEED: feed_id has {len(feed_id)} bytes, not 16")
    if not isinstance(name, str) or not FEED_NAME.fullmatch(name):
        raise TailraceError(
            f"{name!r} cannot be the name of a feed: 1 to 100 of a-z, 0-9, '.', '_', '-', and a letter or digit first"
        )
    if not isinstance(partitions, int) or isinstance(partitions, bool) or not 1 <= partitions <= partitions_max:
        raise TailraceError(f"feed {name!r}: {partitions!r} partitions; 1 to {partitions_max} can be had")
    level, ttl_s = value.get("level"), value.get("ttl_s")
    info = FeedInfo(
        name, feed_id, partitions, keyspace, retention, ages[0], ages[1], ages[2], replication, level, ttl_s
    )
    check_settings(info)
    return info


def check_settings(info: FeedInfo) -> None:
    """Raises TailraceError for a setting that the node does not offer, or that is out of its bounds."""
    for what, found, offered in (
        ("keyspace", info.keyspace, ("hash",)),
        ("retention", info.retention, ("compact", "history")),
        ("replication", info.replication, REPLICATION_MODES),
        ("level", info.level, (None, *LEVELS)),
    ):
        if found not in offered:
            raise TailraceError(
                f"feed {info.name!r}: {what} {found!r:.100} is not offered by this node; "
                f"{', '.join(map(_named, offered))}"
            )
    mosts = {"history_age_s": AGE_S_MAX, "history_bytes": HISTORY_BYTES_MAX, "tombstone_age_s": AGE_S_MAX}
    for what, most in mosts.items():
        bound = getattr(info, what)
        if not _is_bound(bound, most) and not (bound is None and what != "tombstone_age_s"):
            raise TailraceError(
                f"feed {info.name!r}: {what} is {bound!r:.100}, and has to be a number from 0 to {most}"
            )

    if info.ttl_s is not None and not _is_ttl(info.ttl_s):
        raise TailraceError(
            f"feed {info.name!r}: ttl_s is {info.ttl_s!r:.100}, and has to be a number from 1 to {TTL_S_MAX}"
        )


def _is_ttl(value: Any) -> bool:
    return _is_bound(value, TTL_S_MAX) and value >= 1


def _named(value: str | None) -> str:
    return "null" if value is None else value


def _is_bound(value: Any, most: int) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most
