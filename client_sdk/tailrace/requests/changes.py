"""Checks the arguments of writes and look-ups, and makes blocks of changes. Pure.

put, delete ──> conditions ──> row_step ──> a row, or a block of one, and its lane
write       ──────────────> batch_blocks ──> a block and a lane for each partition
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tailrace.block import ROWS_MAX, Block, encode_block, encode_row
from tailrace.block.header import KEY_BYTES_MAX, TTL_S_MAX
from tailrace.errors import TailraceError, TooLarge
from tailrace.model import BRANCH_BYTES, Delete, FeedInfo, Level, Put, Resolved, Version
from tailrace.model.arguments import count, seconds
from tailrace.model.failover import SEQ_MAX
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests.batch import check_key, check_value, split
from tailrace.requests.lane import Lane, Lanes
from tailrace.requests.plan import WriteBlock, WriteRow
from tailrace.wire.messages import WriteFlag

# A writer's batch and one more value stay below a block's bound.
BATCH_BYTES_MAX = 8 * 1024 * 1024

# The keys of a look-up that have the time of one call.
LOOK_UP_KEYS_MAX = 16_384

# The settings of a feed that are numbers.
_NUMBERS: dict[str, Callable[[str, Any], float]] = {
    "partitions": count,
    "history_age_s": seconds,
    "history_bytes": count,
    "tombstone_age_s": seconds,
    "ttl_s": seconds,
}


# The settings that may be infinite.
_UNBOUNDED = ("history_", "ttl_s")
# The level of a feed without one of its own: None on the wire.
DEFAULT_LEVEL = "default"


def creation_request(name: str, feed_id: bytes, exist_ok: bool, **settings: str | float | None) -> dict[str, Any]:
    """Returns the body of a CREATE_FEED, without the settings that are None.

    Raises ValueError or TypeError if a level does not exist, or a setting that is a number has another value. The node
    checks the bounds.
    """
    asked: dict[str, Any] = {setting: value for setting, value in settings.items() if value is not None}
    if "level" in asked:
        asked["level"] = _feed_level(asked["level"])
    for setting, check in _NUMBERS.items():
        if setting in asked:
            asked[setting] = check(setting, asked[setting])
    return {"name": name, "feed_id": feed_id.hex(), **asked, "exist_ok": exist_ok}


def changes_request(**settings: str | float | None) -> dict[str, Any]:
    """Returns the members of a SET_FEED: the settings that are not None. Infinity is no bound, None on the wire.

    Raises ValueError if there are none, and as ``creation_request``.
    """
    asked: dict[str, Any] = {setting: value for setting, value in settings.items() if value is not None}
    if not asked:
        raise ValueError(f"no setting is given: one of {', '.join(settings)} is needed")
    for setting, check in _NUMBERS.items():
        if setting in asked:
            is_unbounded = setting.startswith(_UNBOUNDED) and asked[setting] == math.inf
            asked[setting] = None if is_unbounded else check(setting, asked[setting])
    if "level" in asked:
        asked["level"] = _feed_level(asked["level"])
    return asked


def _feed_level(text: str) -> str | None:
    return None if text == DEFAULT_LEVEL else Level.parse(text).name.lower()


def check_kept(info: FeedInfo, asked: dict[str, Any]) -> None:
    """Raises TailraceError if the node has not kept a level or ttl that is ``asked`` for: an older one ignores it."""
    for name, what in (("level", "level"), ("ttl_s", "ttl")):
        if name in asked and getattr(info, name) != asked[name]:
            raise TailraceError(
                f"feed {info.name!r} has no {what} of its own: the node is older than this setting, and has ignored "
                f"{what} {asked[name]}. Its other settings are as asked for. Upgrade the node and set the {what} again"
            )


def checked_ttl(ttl: int) -> int:
    """Returns the ttl of a put. Raises ValueError or TypeError if it is no whole number of seconds within bounds."""
    return count("ttl", ttl, 1, TTL_S_MAX)


def put_flags(value: bytes, if_version: Version | None, if_absent: bool) -> int:
    """Returns the flags of a put. Raises TypeError or TooLarge for the value, ValueError for both conditions."""
    check_value(value)
    if if_version is None:
        return WriteFlag.IF_ABSENT if if_absent else 0
    if if_absent:
        raise ValueError("if_version and if_absent contradict each other")
    return WriteFlag.IF_VERSION


def delete_flags(if_version: Version | None) -> int:
    """Returns the flags of a deletion with this condition."""
    return 0 if if_version is None else WriteFlag.IF_VERSION


def partition_of(key: bytes, hash_: int, partitions: int, version: Version | None) -> int:
    """Returns the partition of ``key``. Raises ValueError if ``version`` is of another partition, or is none."""
    partition = partition_of_hash(hash_, partitions)
    if version is None:
        return partition
    branch, seq = version.branch, version.seq
    # A request that cannot be encoded would keep its place in the lane, and those behind it would wait.
    is_branch = isinstance(branch, bytes) and len(branch) == BRANCH_BYTES
    if not is_branch or not hasattr(seq, "__index__") or not 0 <= seq <= SEQ_MAX:  # numpy's integers have it
        raise ValueError(
            f"no version has branch {branch!r:.60} and seq {seq!r:.40}: {BRANCH_BYTES} bytes, and 0 to {SEQ_MAX}"
        )
    if version.partition != partition:
        raise ValueError(f"key {key!r} is in partition {partition}, the version is of {version.partition}")
    return partition


def row_step(
    key: bytes,
    value: bytes | None,
    feed: Resolved,
    lanes: Lanes,
    level: Level | None,
    flags: int,
    if_version: Version | None,
    ttl: int | None,
    name: str,
) -> WriteRow | WriteBlock:
    """Returns the step that writes one change, whose key and value were checked. Raises as ``partition_of``.

    A row without condition and ttl may leave in one block with others. ``name`` is that of the feed.
    """
    hash_ = key_hash(key)
    if if_version is None:
        partition = partition_of_hash(hash_, feed.partitions)
    else:
        partition = partition_of(key, hash_, feed.partitions, if_version)
    lane = lanes[feed.feed_id, partition]
    if not flags and ttl is None:
        return tuple.__new__(WriteRow, (lane, key, value, hash_, level, name))
    producer_id, producer_seq = lane.next_number
    if ttl is None:
        block = encode_row(
            key, value, hash_=hash_, partition=partition, producer_id=producer_id, producer_seq=producer_seq
        )
    else:
        block = encode_block(
            [key],
            [value],
            partition=partition,
            producer_id=producer_id,
            producer_seq=producer_seq,
            hashes=[hash_],
            ttls=[ttl],
        )
    return WriteBlock(lane, block, level, flags, if_version, name)


def batch_blocks(changes: Sequence[Put | Delete], feed: Resolved, lanes: Lanes) -> list[tuple[Lane, Block]]:
    """Returns a block for each partition of ``changes``, with its lane. Raises TypeError, ValueError or TooLarge."""
    shares = split(changes, feed.partitions)
    try:
        blocks = [share.encode() for share in shares]
    except TooLarge as error:
        raise TooLarge(f"the batch does not fit into a block of its partition: {error}; write less at once") from None
    return [(lanes[feed.feed_id, block.header.partition], block) for block in blocks]


def check_batching(batch_bytes: int, batch_rows: int, in_flight_bytes: int, linger_s: float = 0.0) -> None:
    """Raises ValueError if a writer cannot have these bounds."""
    count("batch_bytes", batch_bytes, 1, BATCH_BYTES_MAX)
    count("batch_rows", batch_rows, 1, ROWS_MAX)
    count("in_flight_bytes", in_flight_bytes, 1)
    seconds("linger_s", linger_s)


def checked_keys(keys: Iterable[bytes]) -> list[bytes]:
    """Returns the keys of a look-up. Raises TypeError, ValueError or TooLarge."""
    asked = list(keys)
    if not set(map(type, asked)) <= {bytes} or not all(asked) or max(map(len, asked), default=0) > KEY_BYTES_MAX:
        for key in asked:
            check_key(key)
    return asked


def look_ups(keys: list[bytes]) -> Iterator[list[bytes]]:
    """Yields ``keys`` in parts, each as large as one look-up takes. Each has the whole time of a call."""
    return (keys[start : start + LOOK_UP_KEYS_MAX] for start in range(0, len(keys), LOOK_UP_KEYS_MAX))
