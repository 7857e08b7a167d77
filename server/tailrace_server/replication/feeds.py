"""The feeds of a node that follows or is about to lead: made equal to what ``_feeds`` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace_server.feed import Feed
    from tailrace_server.node import Node


def reconcile(node: Node) -> tuple[list[Feed], list[Feed]]:
    """Drops and creates what ``_feeds`` says; gives what was dropped and what was created."""
    dropped, created = node.feeds.reconcile(node.journal, node.config.limits.feeds_max)
    for feed in dropped:
        node.feed_is_gone(feed)
    for feed in created:
        for partition in feed.partitions:
            node.adopt(partition)
    node.flush()
    return dropped, created


async def durable(node: Node) -> None:
    """Returns once all that has been written is durable. Raises NotDurable where that fails."""
    done = trio.Event()
    failures: list[TailraceError] = []

    def told(error: TailraceError | None) -> None:
        if error is not None:
            failures.append(error)
        done.set()

    node.committer.when_durable(told)
    node.turn_ended()
    await done.wait()
    if failures:
        raise failures[0].with_traceback(None)
