"""The rows of feeds and partitions, and the picture of one partition."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from tailrace.link.address import Address
from tailrace.model import Level
from tailrace_server.feeds.feed import info_to_json
from tailrace_server.partition.chain import LostSegment
from tailrace_server.replication.role import Role
from tailrace_server.serving.board.consumers import may_see
from tailrace_server.serving.board.pages import NotFound, Page
from tailrace_server.serving.board.sample import FeedSums
from tailrace_server.serving.board.states import State
from tailrace_server.serving.status import failing_of
from tailrace_server.state.last_batches import PublishedAt, newer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.segment import Segment
    from tailrace_server.serving.access import Access
    from tailrace_server.serving.board.board import Board
    from tailrace_server.serving.board.sample import Sample
    from tailrace_server.serving.services import Services
    from tailrace_server.upkeep.compaction_state import CompactionState, PlannedCompaction, RunningCompaction

SEGMENTS_MAX = 512
SINKS_MAX = 100


class _Followed:
    """What the consumers of a feed make of it."""

    __slots__ = ("count", "lag_mutations", "lag_s", "stuck")

    def __init__(self) -> None:
        self.count = self.lag_mutations = self.stuck = 0
        self.lag_s = 0.0


def _followed(board: Board, sample: Sample, access: Access, names: set[str]) -> dict[str, _Followed]:
    """Sums the consumers of the feeds that are shown."""
    found: dict[str, _Followed] = {}
    for consumer in sample.consumers.values():
        if consumer.feed in names and may_see(access, consumer):
            sums = found.setdefault(consumer.feed, _Followed())
            sums.count += 1
            sums.lag_mutations += consumer.lag.mutations
            sums.lag_s = max(sums.lag_s, consumer.lag.seconds(sample.wall_us))
            sums.stuck += board.judged(consumer).state is State.STUCK
    return found


def feeds_page(board: Board, sample: Sample, access: Access, page: Page) -> dict[str, Any]:
    """Returns the feeds that a page asks for, by name: those of the sample that are still there."""
    names = list(sample.feeds)
    if access.principal.feeds:
        names = [name for name in names if access.shows(name)]
    if page.find:
        names = [name for name in names if page.find in name]
    begin = bisect_right(names, page.after)
    shown = [board.node.feeds.get(name) for name in names[begin : begin + page.limit]]
    return {
        "feeds": feed_rows(board, sample, access, [feed for feed in shown if feed is not None]),
        "more": len(names) > begin + page.limit,
        "total": len(names),
    }


def feed_rows(board: Board, sample: Sample, access: Access, feeds: list[Feed]) -> list[dict[str, Any]]:
    """Returns feeds as lists show them."""
    followed = _followed(board, sample, access, {feed.info.name for feed in feeds})
    failing = failing_partitions(board.node)
    return [_feed_row(board, sample, feed, followed.get(feed.info.name, _Followed()), failing) for feed in feeds]


def failing_partitions(node: Services) -> dict[tuple[str, int], str]:
    """Returns why partitions cannot follow their leader, by feed and partition."""
    found = (each for leadership in node.leaderships for each in failing_of(node, leadership))
    return {(each["feed"], each["partition"]): each["why"] for each in found}


def _feed_row(
    board: Board, sample: Sample, feed: Feed, followed: _Followed, failing: dict[tuple[str, int], str]
) -> dict[str, Any]:
    info, sums = feed.info, sample.feeds.get(feed.info.name)
    if sums is None:  # it is newer than the sample, or no list has it
        sums = FeedSums()
        for partition in feed.partitions:
            sums.add(partition, counts_quorum=False)
    before = None if board.before is None else board.before.feeds.get(info.name)
    seconds = board.seconds_between()
    rate = None if before is None or seconds is None else max(0.0, (sums.mutations - before.mutations) / seconds)
    state, reason = _state_of(feed, followed, failing, rate)
    leadership = next(iter(board.node.leaderships.of_feed(info.feed_id)))
    return {
        "name": info.name,
        "feed_id": info.feed_id.hex(),
        "retention": info.retention,
        "replication": info.replication,
        "partitions": len(feed.partitions),
        "mutations": sums.mutations,
        "mutations_rate": rate,
        "durable": sums.durable,
        "default_level": feed.default_level(leadership.safest_level).name.lower(),
        "quorum_lag_mutations": sums.quorum_lag,
        "memory_bytes": sums.memory,
        "blocks": sums.blocks,
        "segments": sums.segments,
        "segment_bytes": sums.segment_bytes,
        "consumers": followed.count,
        "lag_s": followed.lag_s,
        "lag_mutations": followed.lag_mutations,
        "state": state,
        "reason": reason,
    }


def _state_of(
    feed: Feed, followed: _Followed, failing: dict[tuple[str, int], str], rate: float | None
) -> tuple[str, str]:
    broken = [number for name, number in failing if name == feed.info.name]
    broken += [partition.id for partition in feed.partitions if partition.damage is not None]
    if broken:
        return "stuck", f"partition {broken[0]}" + (f" and {len(broken) - 1} more" if len(broken) > 1 else "") + (
            " cannot follow the leader, or cannot be read"
        )
    if followed.stuck:
        return "stuck", "a consumer takes nothing" if followed.stuck == 1 else "some consumers take nothing"
    return ("moving" if rate or followed.lag_mutations else "idle"), ""


def feed_detail(board: Board, sample: Sample, access: Access, feed: Feed, page: Page) -> dict[str, Any]:
    """Returns a feed with its settings and some of its partitions."""
    failing = failing_partitions(board.node)
    partitions = feed.partitions[page.offset : page.offset + page.limit]
    [row] = feed_rows(board, sample, access, [feed])
    return {
        **row,
        "settings": info_to_json(feed.info),
        "sinks": _sinks(feed),
        "states": [partition_row(board.node, feed, partition, failing) for partition in partitions],
        "more": len(feed.partitions) > page.offset + page.limit,
    }


def _sinks(feed: Feed) -> list[dict[str, Any]]:
    """Returns the sinks that have published in a feed, such as queries of Spark, with their last batches."""
    last: dict[str, PublishedAt] = {}
    for partition in feed.partitions:
        if len(partition.sinks):
            for sink, published in partition.sinks.published():
                last[sink] = newer(published, last.get(sink))
    return [
        {"sink": sink, "last_batch": last[sink].batch, "last_batch_us": last[sink].time_us or None}
        for sink in sorted(last)[:SINKS_MAX]
    ]


def partition_row(
    node: Services, feed: Feed, partition: Partition, failing: dict[tuple[str, int], str]
) -> dict[str, Any]:
    """Returns a partition as the list of a feed shows it."""
    leadership = node.leaderships.of_partition(partition)
    leader = leadership.leader_address
    if leadership.role is Role.LEADER and node.listening is not None:
        leader = str(Address(*node.listening))
    damage = "" if partition.damage is None else str(partition.damage)
    return {
        "id": partition.id,
        "role": partition.state,
        "term": max(leadership.term, partition.log.term),
        "leader": leader,
        "hash_first": partition.hash_first,
        "hash_last": partition.hash_last,
        "high": partition.high_seq,
        "durable": partition.durable_seq,
        "quorum": partition.quorum_seq,
        "visible": partition.visible_seq(feed.read_level(leadership.safest_level)),
        "flushed": partition.flushed_seq,
        "purge": partition.purge_seq,
        "trim": partition.trim_seq,
        "memory_bytes": partition.tree.memory_bytes,
        "segments": len(partition.chain.segments),
        "segment_bytes": partition.chain.nbytes,
        "branches": len(partition.log),
        "followers": len(leadership.replicas.followers(partition)),
        "problem": damage or failing.get((feed.info.name, partition.id), ""),
    }


def partition_of(feed: Feed, number: int) -> Partition:
    """Returns a partition of a feed. NotFound."""
    if number >= len(feed.partitions):
        raise NotFound(f"feed {feed.info.name!r} has no partition {number}, but 0 to {len(feed.partitions) - 1}")
    return feed.partitions[number]


def partition_detail(board: Board, feed: Feed, partition: Partition) -> dict[str, Any]:
    """Returns a partition with its segments, its branches and its followers."""
    node, now = board.node, board.node.clock.monotonic()
    leadership = node.leaderships.of_partition(partition)
    segments, tree = partition.chain.segments, partition.tree
    compaction = node.storage.compactor.state_of(partition)
    return {
        **partition_row(node, feed, partition, failing_partitions(node)),
        "segment_list": _segments(segments[:SEGMENTS_MAX], compaction),
        "segments_more": max(0, len(segments) - SEGMENTS_MAX),
        "compaction": {
            "running": None if compaction.running is None else _renamed(compaction.running),
            "planned": None if compaction.planned is None else _renamed(compaction.planned),
            "pause_s": compaction.pause_s,
            "failure": compaction.failure,
        },
        "queue": {
            "after": partition.flushed_seq,
            "last": partition.high_seq,
            "blocks": tree.block_count,
            "bytes": tree.nbytes,
        },
        "branches_list": _branches(partition),
        "levels": {level.name.lower(): partition.visible_seq(level) for level in Level},
        "followers_list": [peer.to_json(partition, now) for peer in leadership.replicas.followers(partition)],
    }


def _segments(segments: Sequence[Segment], compaction: CompactionState) -> list[dict[str, Any]]:
    running, planned = compaction.running, compaction.planned
    return [
        _segment(segment)
        | {
            "compacting": running is not None and running.first <= number <= running.last,
            "planned": planned is not None and planned.first <= number <= planned.last,
        }
        for number, segment in enumerate(segments)
    ]


def _renamed(compaction: RunningCompaction | PlannedCompaction) -> dict[str, Any]:
    """Returns the fields of a compaction by the names of the wire."""
    return {"bytes" if name == "nbytes" else name: value for name, value in compaction._asdict().items()}


def _segment(segment: Segment) -> dict[str, Any]:
    identity = segment.identity
    return {
        "after": identity.after_seq,
        "last": identity.last_seq,
        "rows": identity.rows,
        "bytes": segment.nbytes,
        "oldest_us": identity.oldest_timestamp or None,
        "newest_us": identity.newest_timestamp or None,
        "lost": isinstance(segment, LostSegment),
    }


def _branches(partition: Partition) -> list[dict[str, Any]]:
    """Returns the failover log, oldest first, with the end of each branch."""
    entries = list(reversed(list(partition.log)))
    ends = [entry.base for entry in entries[1:]] + [None]
    return [
        {"term": entry.term, "branch": entry.branch.hex(), "base": entry.base, "end": end}
        for entry, end in zip(entries, ends, strict=True)
    ]
