"""What a node tells about itself, as JSON: for ``tailrace status``, HTTP, and whoever looks after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace import _version

if TYPE_CHECKING:
    from tailrace_server.feed import Feed
    from tailrace_server.node import Node


def status_of(node: Node) -> dict[str, Any]:
    """The node as ``tailrace status`` and ``/api/status`` show it."""
    now = node.clock.monotonic()
    journal = node.journal.statistics()
    failure = node.committer.failure or node.journal.failed
    problems = [str(failure)] if failure is not None else []
    problems += [f"flushing fails: {node.flusher.failure}"] if node.flusher.failure else []
    problems += [f"compacting fails: {node.compactor.failure}"] if node.compactor.failure else []
    problems += [text for text in (node.space.low, node.compactor.uptime.suspended) if text]
    problems += node.damages.values()
    return {
        "software": f"tailrace {_version.__version__}",
        "node_id": node.identity.node_id.hex(),
        "cluster_id": node.identity.cluster_id.hex(),
        "placement_id": node.identity.placement_id.hex(),
        "healthy": not problems,
        "failure": "; ".join(problems) or None,
        "data": node.config.data,
        "uptime_s": now - node.started_at,
        "unclean_start": node.unclean_start,
        "journal": {**journal._asdict(), "usual_sync_seconds": node.committer.usual_sync_seconds},
        "storage": {
            "memory_bytes": node.memory.used,
            "memory_bytes_max": node.memory.bytes_max,
            "retired_bytes": node.pins.retired_bytes,
            "free_bytes": node.space.free_bytes,
            "reserved_bytes": node.space.reserved_bytes,
            **{f"stages_{name}": number for name, number in node.stages.statistics()._asdict().items()},
            **node.flusher.statistics()._asdict(),
            **node.compactor.statistics()._asdict(),
        },
        "feeds": [_feed_status(feed) for feed in node.feeds],
        "connections": [connection.status(now) for connection in node.connections],
    }


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
