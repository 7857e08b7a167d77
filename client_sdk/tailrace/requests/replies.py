"""Reads a node's JSON answers into values of ``model``. Raises ProtocolError for wrong ones. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from tailrace.errors import ProtocolError, TailraceError, UnknownFeed
from tailrace.model import FEED_ID_BYTES, FeedInfo, Item, NodeStatus, PartitionInfo, Resolved, TokenInfo, Version
from tailrace.model.failover import SEQ_MAX, FailoverLog
from tailrace.model.position import PARTITION_MAX
from tailrace.wire.bodies import field, seq_field

_T = TypeVar("_T")


def forgetting(
    done: Callable[[_T | None, TailraceError | None], None], forget: Callable[[], None]
) -> Callable[[_T | None, TailraceError | None], None]:
    """Returns ``done``, with a call of ``forget`` before it when the node does not know the feed's id.

    The feed may have been dropped and made again: its next use has to ask for the new id.
    """

    def forget_and_done(result: _T | None, error: TailraceError | None) -> None:
        if isinstance(error, UnknownFeed):
            forget()
        done(result, error)

    return forget_and_done


def resolved(value: dict[str, Any]) -> Resolved:
    """Returns the id and the number of partitions of a partition map."""
    try:
        partitions = field(value, "partitions", list, "the partition map")
        found = Resolved(bytes.fromhex(value["feed"]["feed_id"]), len(partitions))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the partition map cannot be read: {error!r}") from None
    if len(found.feed_id) != FEED_ID_BYTES or not found.partitions:
        raise ProtocolError(
            f"the partition map cannot be read: feed id {found.feed_id!r}, {found.partitions} partitions"
        )
    return found


class PartitionMap(NamedTuple):
    """A feed's id, the high seq of each partition, and the failover logs that the node has sent."""

    feed_id: bytes
    high_seqs: dict[int, int]
    logs: dict[int, FailoverLog]


def partition_map(value: dict[str, Any]) -> PartitionMap:
    """Returns the part of a partition map that a stream needs."""
    try:
        feed_id = bytes.fromhex(value["feed"]["feed_id"])
        high_seqs = {p["id"]: p["high_seq"] for p in value["partitions"]}
        logs = {p["id"]: FailoverLog.from_json(p["log"]) for p in value["partitions"] if "log" in p}
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the partition map cannot be read: {error!r}") from None
    numbers = [(id, PARTITION_MAX) for id in high_seqs] + [(seq, SEQ_MAX) for seq in high_seqs.values()]
    if len(feed_id) != FEED_ID_BYTES or any(type(n) is not int or not 0 <= n <= most for n, most in numbers):
        raise ProtocolError("the partition map cannot be read: an id or a seq is out of its range")
    return PartitionMap(feed_id, high_seqs, logs)


def failover_log(value: dict[str, Any], partition: int) -> FailoverLog:
    """Returns the failover log of a partition of a partition map."""
    try:
        return FailoverLog.from_json(value["partitions"][partition]["log"])
    except (LookupError, TypeError, ValueError) as error:
        raise ProtocolError(f"the failover log of partition {partition} cannot be read: {error!r}") from None


def has_come_to(value: dict[str, Any], version: Version) -> bool:
    """Tells whether the node of this partition map has ``version``."""
    log = failover_log(value, version.partition)
    high_seq: int = seq_field(value["partitions"][version.partition], "high_seq", "the partition map")
    return bool(log) and high_seq >= version.seq and log.branch_at(version.seq) == version.branch


def may_come_to(value: dict[str, Any], version: Version) -> bool:
    """Tells whether the history of this partition map has ``version``, or can still get it."""
    return failover_log(value, version.partition).may_have(version.branch, version.seq)


def shows(item: Item | None, version: Version) -> bool:
    """Tells whether the answer to a look-up is of the branch of ``version`` and not below it: the node has it."""
    return item is not None and item.version.branch == version.branch and item.version.seq >= version.seq


def partition_info(value: dict[str, Any]) -> PartitionInfo:
    """Returns a partition of a partition map."""
    try:
        fields = {name: value[name] for name in PartitionInfo._fields}
        fields |= {"replicas": tuple(value["replicas"]), "log": FailoverLog.from_json(value["log"])}
        return PartitionInfo(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a partition of the partition map cannot be read: {error!r}") from None


def partition_infos(value: dict[str, Any]) -> list[PartitionInfo]:
    """Returns the partitions of a partition map."""
    return [partition_info(partition) for partition in field(value, "partitions", list, "the partition map")]


def feed_infos(value: dict[str, Any]) -> list[FeedInfo]:
    """Returns the feeds of a list of feeds."""
    return [feed_info(feed) for feed in field(value, "feeds", list, "the list of feeds")]


def feed_info(value: dict[str, Any]) -> FeedInfo:
    """Returns a feed of a list of feeds."""
    try:
        fields = {name: value[name] for name in FeedInfo._fields if name not in ("level", "ttl_s")}
        later = {name: value.get(name) for name in ("level", "ttl_s")}  # earlier nodes do not tell them
        return FeedInfo(**fields | {"feed_id": bytes.fromhex(value["feed_id"])} | later)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a feed cannot be read: {error!r}") from None


def token_infos(value: dict[str, Any]) -> list[TokenInfo]:
    """Returns the tokens of a list of tokens."""
    return [_token_info(token) for token in field(value, "tokens", list, "the list of tokens")]


def _token_info(value: dict[str, Any]) -> TokenInfo:
    try:
        fields = {name: value[name] for name in TokenInfo._fields if name != "certificate"}
        fields["certificate"] = value.get("certificate", "")  # earlier nodes do not tell it
        feeds, prefix, token_id = tuple(value["feeds"]), bytes.fromhex(value["key_prefix"]), value["token_id"]
        return TokenInfo(**fields | {"feeds": feeds, "key_prefix": prefix, "token_id": bytes.fromhex(token_id)})
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a token cannot be read: {error!r}") from None


def node_status(value: dict[str, Any]) -> NodeStatus:
    """Returns a node's status."""
    try:
        node_id, cluster_id = bytes.fromhex(value["node_id"]), bytes.fromhex(value["cluster_id"])
        return NodeStatus(value["software"], node_id, cluster_id, value["healthy"], value["uptime_s"], value)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the status cannot be read: {error!r}") from None
