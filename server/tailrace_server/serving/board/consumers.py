"""The rows of consumers and replicas, with their states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace_server.serving.board.pages import NotFound, Page
from tailrace_server.serving.board.states import ORDER, State, judge_replica

if TYPE_CHECKING:
    from tailrace_server.replication.replicas import Peer
    from tailrace_server.serving.access import Access
    from tailrace_server.serving.board.board import Board
    from tailrace_server.serving.board.sample import ConsumerSums, Sample

# The names of clients that the node itself makes for pages, and that Spark's connector gives.
_KINDS = ("websocket", "console", "spark")
REPLICAS_MAX = 100


def may_see(access: Access, consumer: ConsumerSums) -> bool:
    """Returns whether a consumer is shown. A token that is limited to feeds sees only its own connections."""
    if not access.principal.feeds:
        return True
    connection = consumer.connection
    return access.shows(consumer.feed) and connection is not None and connection.access.principal == access.principal


def consumer_row(board: Board, sample: Sample, consumer: ConsumerSums) -> dict[str, Any]:
    """Returns a consumer as the console shows it."""
    judgement = board.judged(consumer)
    before = None if board.before is None else board.before.consumers.get(consumer.id)
    seconds = board.seconds_between()
    rate = None if before is None or seconds is None else max(0.0, (consumer.sent - before.sent) / seconds)
    return {
        "id": consumer.id,
        "kind": kind_of(consumer.name),
        "name": consumer.name,
        "feed": consumer.feed,
        "streams": consumer.streams,
        "level": consumer.level,
        "state": judgement.state.value,
        "reason": judgement.reason,
        "since_s": judgement.seconds,
        "lag_s": consumer.lag.seconds(sample.wall_us),
        "lag_mutations": consumer.lag.mutations,
        "sent": consumer.sent,
        "visible": consumer.visible,
        "high": consumer.high,
        "rate": rate,
        "stuck_s": judgement.seconds if judgement.state is State.STUCK else 0.0,
        **_of_connection(consumer.connection, board.node.clock.monotonic()),
    }


def _of_connection(connection: Any, now: float) -> dict[str, Any]:
    if connection is None:
        return {"peer": "", "uncredited_bytes": 0, "backlog_bytes": 0, "age_s": None, "barriers": 0}
    return {
        "peer": connection.transport.peer,
        "uncredited_bytes": connection.rounds.window.outstanding_bytes,
        "backlog_bytes": connection.transport.backlog_bytes,
        "age_s": now - connection.opened_at,
        "barriers": len(connection.rounds.barriers),
    }


def kind_of(name: str) -> str:
    """Returns what a client is, by the name that it has given."""
    return next((kind for kind in _KINDS if name.startswith(f"{kind} ")), "consumer")


def consumers_page(board: Board, sample: Sample, access: Access, page: Page) -> dict[str, Any]:
    """Returns the consumers that a page asks for, the worst first."""
    found = []
    for consumer in sample.consumers.values():
        if not may_see(access, consumer) or (page.feed and consumer.feed != page.feed):
            continue
        if page.find and page.find not in consumer.name.lower() and page.find not in consumer.feed:
            continue
        judgement = board.judged(consumer)
        if page.state and judgement.state.value != page.state:
            continue
        found.append((ORDER[judgement.state], -consumer.lag.seconds(sample.wall_us), consumer.id, consumer))
    found.sort(key=lambda each: each[:3])
    shown = [each[3] for each in found[page.offset : page.offset + page.limit]]
    return {
        "consumers": [consumer_row(board, sample, consumer) for consumer in shown],
        "more": len(found) > page.offset + page.limit,
        "total": len(found),
    }


def consumer_detail(board: Board, sample: Sample, access: Access, id: str, page: Page) -> dict[str, Any]:
    """Returns a consumer with the positions of its streams. NotFound."""
    consumer = sample.consumers.get(id)
    if consumer is None or not may_see(access, consumer):
        raise NotFound(f"there is no consumer {id!r:.100}: it has ended, or has connected anew under another id")
    feed = board.node.feeds.named(consumer.feed)
    slots = [] if consumer.connection is None else list(consumer.connection.rounds.slots.values())
    slots = [slot for slot in slots if slot.stream.partition.feed_id == feed.info.feed_id]
    slots.sort(key=lambda slot: slot.key)
    return {
        **consumer_row(board, sample, consumer),
        "partitions": [_stream(slot) for slot in slots[page.offset : page.offset + page.limit]],
        "more": len(slots) > page.offset + page.limit,
    }


def _stream(slot: Any) -> dict[str, Any]:
    stream = slot.stream
    partition = stream.partition
    last_seq = partition.high_seq if stream.end_seq is None else min(stream.end_seq, partition.high_seq)
    return {
        "id": partition.id,
        "state": slot.state.label,
        "sent": stream.sent_seq,
        "visible": partition.visible_seq(stream.level),
        "high": partition.high_seq,
        "lag_mutations": max(0, last_seq - stream.sent_seq),
        "end": stream.end_seq,
    }


def replica_rows(board: Board, sample: Sample) -> list[dict[str, Any]]:
    """Returns the replicas that follow this node."""
    peers = [peer for leadership in board.node.leaderships for peer in leadership.replicas.peers.values()]
    return [_replica(board, sample, peer) for peer in peers[:REPLICAS_MAX]]


def _replica(board: Board, sample: Sample, peer: Peer) -> dict[str, Any]:
    now = board.node.clock.monotonic()
    lag = sample.replicas.get(peer.placement_id)
    last = max((acknowledged.at for acknowledged in peer.acknowledged.values()), default=None)
    judgement = judge_replica(
        is_connected=peer.is_connected,
        lag_mutations=0 if lag is None else lag.mutations,
        since_ack_s=None if last is None else now - last,
        slow_after_s=board.node.config.limits.slow_after_s,
    )
    return {
        "address": peer.address,
        "placement_id": peer.placement_id.hex(),
        "votes": peer.votes,
        "connected": peer.is_connected,
        "state": judgement.state.value,
        "reason": judgement.reason,
        "partitions": len(peer.streams),
        "lag_mutations": 0 if lag is None else lag.mutations,
        "lag_s": 0.0 if lag is None else lag.seconds(sample.wall_us),
        "since_ack_s": None if last is None else now - last,
    }
