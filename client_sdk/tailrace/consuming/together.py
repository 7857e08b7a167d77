"""The events that a program takes in one call. Pure.

A block of rows may be cut in two: the rest stays in the queue, and the first rows lead to a position of their own. Of
the other events none is cut, and these end what is taken together:

    a barrier that has come back    it is reached when the program asks for the event behind it
    a rollback                      an index settles the event in hand
    rows that are gone              the program gets the error by itself
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tailrace.consuming.events import Mutations, Revoked, Rollback
from tailrace.errors import DataGone

if TYPE_CHECKING:
    from tailrace.consuming.rollbacks import Queued
    from tailrace.model.position import Position


def together(
    first: Queued,
    queue: collections.deque[Queued],
    arrive: Callable[[], bool],
    rows_max: int,
    handled: Mapping[int, Position],
) -> list[Queued]:
    """Returns ``first`` and the events behind it that are taken with it.

    Args:
        first: The event that is taken in any case. Of a block with too many rows, the first ones are.
        queue: The events behind it, which are removed if they are taken. A rest goes back to its front.
        arrive: Puts an event into the queue, if it is empty and one has arrived. Returns whether there is one.
        rows_max: The most rows, at least 1. Refetched rows of a rollback are not cut: they are keys of one request.
        handled: The position of each partition before ``first``.
    """
    taken: list[Queued] = []
    reached: dict[int, Position] = {}
    rows = 0
    queued = first
    while True:
        event, partition, position, _ = queued
        if isinstance(event, Mutations):
            left = rows_max - rows
            if len(event) > left:
                before = reached.get(partition) or handled.get(partition)
                if before is None or position is None or event.refetched:
                    if taken:
                        queue.appendleft(queued)
                        return taken
                    return [queued]
                if not left:
                    queue.appendleft(queued)
                    return taken
                head, rest = _cut(queued, event, position, before, left)
                queue.appendleft(rest)
                return [*taken, head]
            rows += len(event)
        taken.append(queued)
        if position is not None:
            reached[partition] = position
        if isinstance(event, Rollback | Revoked) or not arrive() or isinstance(queue[0][0], bytes | DataGone):
            return taken
        queued = queue.popleft()


def _cut(queued: Queued, event: Mutations, position: Position, before: Position, rows: int) -> tuple[Queued, Queued]:
    """Returns the first ``rows`` rows of a block, and the rest, which frees its bytes.

    The position between them is one inside of a snapshot, from the position before the block on. The block may be the
    end of a run, in which no other seq is a state of the feed.
    """
    head, rest = event.split(rows)
    inside = position._replace(seq=head.last_seq, snapshot_first=before.snapshot_first)
    return (head, queued[1], inside, 0), (rest, queued[1], position, queued[3])
