"""Waits until what a node has written is on its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from tailrace_server.node import Node


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
