"""What a node tells about itself, as JSON: for ``tailrace status``, HTTP, and whoever looks after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace import _version
from tailrace.link.address import Address
from tailrace_server.feeds.feed import info_to_json
from tailrace_server.replication.peers import seen_to_json
from tailrace_server.replication.promotion_forecast import outlook_of, set_problem
from tailrace_server.replication.role import Role
from tailrace_server.replication.unreadable import unreadable_of

if TYPE_CHECKING:
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.serving.services import Services


# Partitions of all feeds together whose state is told one by one: the answer to STATUS is one frame. A partition takes
# some 300 bytes, and 2.5 kB with all the branches and followers that it can have.
STATES_MAX = 10_000


def health_of(node: Services) -> dict[str, Any]:
    """Whether the node is well, and what it is: the beginning of its status. Of feeds only a set's are looked at."""
    failure = node.storage.committer.failure or node.storage.journal.failed
    problems = [str(failure)] if failure is not None else []
    problems += [f"flushing fails: {node.storage.flusher.failure}"] if node.storage.flusher.failure else []
    problems += [f"compacting fails: {node.storage.compactor.failure}"] if node.storage.compactor.failure else []
    problems += [text for text in (node.storage.space.low, node.storage.compactor.uptime.suspended) if text]
    problems += node.storage.damages.values()
    problems += [text for text in (set_problem(node, node.member),) if text]
    return {
        "software": f"tailrace {_version.__version__}",
        "node_id": node.identity.node_id.hex(),
        "cluster": node.config.cluster,
        "cluster_id": node.identity.cluster_id.hex(),
        "placement_id": node.identity.placement_id.hex(),
        "healthy": not problems,
        "failure": "; ".join(problems) or None,
        "data": node.config.data,
    }


def status_of(node: Services) -> dict[str, Any]:
    """The node as ``tailrace status`` and ``/api/status`` show it."""
    now = node.clock.monotonic()
    journal = node.storage.journal.statistics()
    return {
        **health_of(node),
        "uptime_s": now - node.started_at,
        "unclean_start": node.unclean_start,
        "journal": {**journal._asdict(), "usual_sync_seconds": node.storage.committer.usual_sync_seconds},
        "storage": {
            "memory_bytes": node.storage.memory.held,
            "memory_bytes_max": node.storage.memory.bytes_max,
            "retired_bytes": node.storage.pins.retired_bytes,
            "free_bytes": node.storage.space.free_bytes,
            "reserved_bytes": node.storage.space.reserved_bytes,
            **{f"stages_{name}": number for name, number in node.stages.statistics()._asdict().items()},
            **node.storage.flusher.statistics()._asdict(),
            **node.storage.compactor.statistics()._asdict(),
        },
        "replication": _replication_status(node, now),
        "feeds": _feeds_status(node, now),
        "connections": list(node.connections.status(now)),
    }


def partition_map(node: Services, feed: Feed) -> dict[str, Any]:
    """A feed's partitions, and who has them, as the wire tells it."""
    leader = node.leadership.leader
    if node.leadership.role is Role.LEADER and node.listening is not None:
        leader = str(Address(*node.listening))
    partitions = [
        {
            "id": p.id,
            "hash_first": p.hash_first,
            "hash_last": p.hash_last,
            "state": p.state,
            "term": p.log.term,
            "leader": leader,
            "replicas": [peer.address for peer in node.leadership.replicas.followers(p) if peer.address],
            "high_seq": p.high_seq,
            "durable_seq": p.durable_seq,
            "log": p.log.to_json(),
        }
        for p in feed.partitions
    ]
    return {"feed": info_to_json(feed.info), "partitions": partitions}


def _replication_status(node: Services, now: float) -> dict[str, Any]:
    """Who leads, who follows this node, and what ``promote`` would do on it."""
    outlook = outlook_of(node, node.member)
    partitions = list(node.feeds.partitions())
    return {
        "role": node.leadership.role.value,
        # A node that is alone has promised no term: it is in that of its newest branch.
        "term": node.leadership.term or max(partition.log.term for partition in partitions),
        "leader": node.leadership.leader,
        "members": [str(member) for member in node.config.members],
        "replica_of": None if node.config.replica_of is None else str(node.config.replica_of),
        "others": _others_status(node),
        "doing": "" if node.member is None else node.member.progress,
        "unreadable": [found.to_json() for found in unreadable_of(node)[:STATES_MAX]],
        "promotion": outlook.text,
        "promotion_case": outlook.case,
        "promotion_succeeds": outlook.succeeds,
        "replicas": [peer.summary(partitions, now) for peer in node.leadership.replicas.peers.values()],
    }


def _others_status(node: Services) -> list[dict[str, Any]]:
    """What each of the other members, or the source of a replica, has answered last."""
    others = [] if node.member is None else sorted(node.member.seen.items())
    return [
        {"address": address, "answers": seen is not None} | ({} if seen is None else seen_to_json(seen))
        for address, seen in others
    ]


def _partition_status(node: Services, partition: Partition, now: float) -> dict[str, Any]:
    """A partition, and who follows it."""
    return {
        "id": partition.id,
        "role": partition.state,
        "term": max(
            node.leadership.term, partition.log.term
        ),  # a handover keeps the branch, and with it the branch's term
        "branches": partition.log.to_json(),
        "high": partition.high_seq,
        "durable": partition.durable_seq,
        "quorum": partition.quorum_seq,
        "visible": partition.visible_seq(node.leadership.safest_level),
        "followers": [peer.to_json(partition, now) for peer in node.leadership.replicas.followers(partition)],
    }


def _feeds_status(node: Services, now: float) -> list[dict[str, Any]]:
    feeds, room = [], STATES_MAX
    for feed in node.feeds:
        told = feed.partitions[:room]
        room -= len(told)
        feeds.append(_feed_status(feed) | {"states": [_partition_status(node, p, now) for p in told]})
    return feeds


def _feed_status(feed: Feed) -> dict[str, Any]:
    partitions = feed.partitions
    return {
        "name": feed.info.name,
        "feed_id": feed.info.feed_id.hex(),
        "retention": feed.info.retention,
        "partitions": len(partitions),
        "mutations": sum(p.high_seq for p in partitions),
        "durable": sum(p.durable_seq for p in partitions),
        "memory_bytes": sum(p.tree.memory_bytes for p in partitions),
        "blocks": sum(p.tree.block_count for p in partitions),
        "segments": sum(len(p.chain.segments) for p in partitions),
        "segment_bytes": sum(p.chain.nbytes for p in partitions),
        "flushed": sum(p.flushed_seq for p in partitions),
        "high_seqs": [p.high_seq for p in partitions],
        "terms": [p.log.term for p in partitions],
    }
