"""The plan of `Feed.explain_resume`: asks a node for its answer to a consumer that resumes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.requests.client_core import ClientCore
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.plan import Call, Plan
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import ResumeAnswer

if TYPE_CHECKING:
    from tailrace.consuming.explain import Explanation


def explain_plan(
    client: ClientCore, feed: FeedCore, positions: Positions, visibility: str
) -> Plan[dict[int, Explanation]]:
    """Explains how a consumer would resume from these positions now, and why. No stream is opened.

    Args:
        positions: The stored positions of the consumer.
        visibility: The level of the consumer: "memory", "disk" or "quorum".

    Returns:
        An explanation of each partition of the feed.

    Raises:
        BadPosition: The positions belong to another feed or cluster.
        UnknownFeed: The feed does not exist.
        Retryable: No node has answered in time.
    """
    from tailrace.consuming.explain import explain, request_of  # few programs ask for explanations

    level = feed.level(visibility)
    found = yield from feed.ask_again()
    positions.require_feed(client.cluster_id, found.feed_id)
    explained = {}
    for partition in range(found.partitions):
        position = positions.get(partition, Position.at(FailoverLog(), 0))
        request = request_of(found.feed_id, partition, position, level, client.peer_role)
        answer = ResumeAnswer.of_json((yield Call(Opcode.EXPLAIN_RESUME, request.to_json())))
        explained[partition] = explain(partition, position, answer)
    return explained
