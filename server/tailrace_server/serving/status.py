"""The status of a node as JSON, for ``tailrace status``, HTTP and monitoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace import _version
from tailrace.link.address import Address
from tailrace_server.feeds.feed import info_to_json
from tailrace_server.replication.follower_sums import FollowerSums
from tailrace_server.replication.peers import seen_to_json
from tailrace_server.replication.promotion_forecast import forecast_of, set_problem
from tailrace_server.replication.role import Role
from tailrace_server.replication.unreadable import unreadable_of
from tailrace_server.replication.voters import Voters, voters_to_json
from tailrace_server.serving.feeds_answer import Tell, Told, encode_with_feeds
from tailrace_server.serving.narrowed_status import narrowed

if TYPE_CHECKING:
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.member import Member
    from tailrace_server.serving.access import Access
    from tailrace_server.serving.services import Services


# Partitions of all feeds together whose state is told one by one: the answer to STATUS is one frame. A partition takes
# some 300 bytes, and 2.5 kB with all the branches and followers that it can have.
STATES_MAX = 10_000
# Consumers with a name, about 400 bytes each. Counting the lag of one takes 0.5 us for each partition.
CONSUMERS_SHOWN_MAX = 200


def health_of(node: Services) -> dict[str, Any]:
    """Returns the first part of the status: health, role and identity. It looks only at the feeds of a set."""
    failure = node.storage.committer.failure or node.storage.journal.failed
    problems = [str(failure)] if failure is not None else []
    problems += [f"flushing fails: {node.storage.flusher.failure}"] if node.storage.flusher.failure else []
    problems += [f"compacting fails: {node.storage.compactor.failure}"] if node.storage.compactor.failure else []
    problems += _refusing_problem(node)
    problems += [text for text in (node.storage.space.low, node.storage.compactor.uptime.suspended) if text]
    problems += node.storage.damages.values()
    problems += [text for text in map(set_problem, node.members.values()) if text]
    problems += _receiving_problem(node)
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
    """Returns the node as ``tailrace status`` and ``/api/status`` show it."""
    tell = tell_feeds(node)
    return status_head(node) | {"feeds": [tell(feed).whole() for feed in node.feeds]}


async def status_body(node: Services, access: Access | None = None) -> bytes:
    """Returns the JSON of ``status_of`` for one who has ``access``, made in many turns if there are many feeds."""
    sums = await FollowerSums(node.leaderships.unnamed).count_in_turns()
    return await encode_with_feeds(node.feeds, status_head(node, access, sums), tell_feeds(node), access)


def status_head(node: Services, access: Access | None = None, sums: FollowerSums | None = None) -> dict[str, Any]:
    """Returns the status without its feeds. Tokens for some feeds are told less: `narrowed_status`.

    ``sums``: what the replicas lack; they are counted now if it is not given.
    """
    sums = FollowerSums(node.leaderships.unnamed).count_now() if sums is None else sums
    if access is not None and access.principal.feeds:
        return narrowed(_whole_head(node, sums), access.shows)
    return _whole_head(node, sums)


def _whole_head(node: Services, sums: FollowerSums) -> dict[str, Any]:
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
            "checkpoints": len(node.storage.checkpoints),
            "checkpoint_bytes": node.storage.checkpoints.replaced_bytes,
            "free_bytes": node.storage.space.free_bytes,
            "reserved_bytes": node.storage.space.reserved_bytes,
            **{f"stages_{name}": number for name, number in node.stages.statistics()._asdict().items()},
            **node.storage.flusher.statistics()._asdict(),
            **node.storage.compactor.statistics()._asdict(),
            **node.storage.checks.statistics()._asdict(),
        },
        "tls": None if node.host.tls is None else node.host.tls.status(),
        "cluster_store": None if node.cluster_status is None else node.cluster_status(),
        "replication": _replication_status(node, node.leaderships.unnamed, sums, now),
        "consumers": node.consumers.status(CONSUMERS_SHOWN_MAX),
        "connections": list(node.connections.status(now)),
    }


def partition_map(node: Services, feed: Feed) -> dict[str, Any]:
    """Returns a feed's partitions, and who has them, as the wire tells it."""
    partitions = [_partition_of_map(node, partition) for partition in feed.partitions]
    return {"feed": info_to_json(feed.info), "partitions": partitions}


def _partition_of_map(node: Services, partition: Partition) -> dict[str, Any]:
    leadership = node.leaderships.of_partition(partition)
    leader = leadership.leader_address
    if leadership.role is Role.LEADER and node.listening is not None:
        leader = str(Address(*node.listening))
    return {
        "id": partition.id,
        "hash_first": partition.hash_first,
        "hash_last": partition.hash_last,
        "state": partition.state,
        "term": partition.log.term,
        "leader": leader,
        "replicas": [peer.address for peer in leadership.replicas.followers(partition) if peer.address],
        "high_seq": partition.high_seq,
        "durable_seq": partition.durable_seq,
        "log": partition.log.to_json(),
        "flushed_seq": partition.flushed_seq,
        "purge_seq": partition.purge_seq,
        "trim_seq": partition.trim_seq,
        "segment_bytes": partition.chain.nbytes,
    }


def _replication_status(node: Services, leadership: Leadership, sums: FollowerSums, now: float) -> dict[str, Any]:
    """Who leads a group, who follows this node in it, and what ``promote`` would do."""
    member = node.members.get(leadership.group.number)
    forecast = forecast_of(node, leadership, member, sums)
    return {
        "role": leadership.role.value,
        # A node that is alone has promised no term: it is in that of its newest branch.
        "term": leadership.term or sums.newest_term,
        "leader": leadership.leader,
        "default_level": leadership.safest_level.name.lower(),
        "members": list(leadership.members.names),
        "replica_of": None if node.config.replica_of is None else str(node.config.replica_of),
        "others": _others_status(member),
        "voters": voters_to_json(Voters() if member is None else member.local.file.now.voters),
        "doing": "" if member is None else member.progress,
        "failover": {"mode": "manual", "state": "", "why": ""} if member is None else member.successor.to_json(),
        "failing": failing_of(node, leadership)[:STATES_MAX],
        "begun_anew": node.storage.begun_anew.to_json(STATES_MAX),
        "unreadable": [found.to_json() for found in unreadable_of(node, leadership.group)[:STATES_MAX]],
        "promotion": forecast.text,
        "promotion_case": forecast.case,
        "promotion_succeeds": forecast.succeeds,
        "replicas": [peer.summary(sums.of(peer).lag, now) for peer in sums.peers],
    }


def failing_of(node: Services, leadership: Leadership) -> list[dict[str, Any]]:
    """Returns the partitions of a group that cannot follow their leader at present, and why."""
    member = node.members.get(leadership.group.number)
    following = None if member is None else member.following
    streams = [] if following is None else following.failing()
    return [
        {"feed": feed.info.name, "partition": failed.partition, "why": failed.message} for feed, failed in streams
    ] + [
        {"feed": node.feeds.of_id(partition.feed_id).info.name, "partition": partition.id, "why": why}
        for partition, why in node.storage.receive_failures
        if partition.pushes.by_segments and partition.state != "leader" and leadership.group.has(partition)
    ]


def _refusing_problem(node: Services) -> list[str]:
    storage = node.storage
    refusal = storage.journal.refusal
    texts = [f"writes are refused: {refusal}"] if refusal and not storage.space.low else []
    return texts + ([storage.why_no_flush] if storage.why_no_flush else [])


def _receiving_problem(node: Services) -> list[str]:
    failing = [each for leadership in node.leaderships for each in failing_of(node, leadership)]
    if not failing:
        return []
    first = failing[0]
    more = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
    return [f"partition {first['partition']} of feed {first['feed']}{more} cannot follow: {first['why']}"]


def _others_status(member: Member | None) -> list[dict[str, Any]]:
    """Returns what each of the other members, or the source of a replica, has answered last."""
    others = [] if member is None else sorted(member.peers.states.items())
    return [
        {"address": address, "answers": seen is not None} | ({} if seen is None else seen_to_json(seen))
        for address, seen in others
    ]


def _partition_status(node: Services, partition: Partition, now: float) -> dict[str, Any]:
    """Returns a partition, and who follows it."""
    leadership = node.leaderships.of_partition(partition)
    return {
        "id": partition.id,
        "role": partition.state,
        # A handover keeps the branch, and with it the branch's term.
        "term": max(leadership.term, partition.log.term),
        "branches": partition.log.to_json(),
        "high": partition.high_seq,
        "durable": partition.durable_seq,
        "quorum": partition.quorum_seq,
        "visible": partition.visible_seq(leadership.safest_level),
        "ahead": [[one.after_seq + 1, one.last_seq] for one in node.storage.ahead.ranges(partition).ranges],
        "followers": [peer.to_json(partition, now) for peer in leadership.replicas.followers(partition)],
    }


def tell_feeds(node: Services) -> Tell:
    """Returns the function that tells the status of a feed, for one answer: it bounds the states of all feeds."""
    room, now = STATES_MAX, node.clock.monotonic()

    def tell(feed: Feed) -> Told:
        nonlocal room
        told = feed.partitions[:room]
        room -= len(told)
        return Told(_feed_status(node, feed), (_partition_status(node, partition, now) for partition in told))

    return tell


def _feed_status(node: Services, feed: Feed) -> dict[str, Any]:
    partitions = feed.partitions
    return {
        "name": feed.info.name,
        "feed_id": feed.info.feed_id.hex(),
        "retention": feed.info.retention,
        "replication": feed.info.replication,
        "default_level": _default_level(node, feed),
        "level": feed.info.level,
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


def _default_level(node: Services, feed: Feed) -> str:
    """Returns the level of writes to a feed that name none. All groups of a node are in sets, or none is."""
    leadership = next(iter(node.leaderships.of_feed(feed.info.feed_id)))
    return feed.default_level(leadership.safest_level).name.lower()
