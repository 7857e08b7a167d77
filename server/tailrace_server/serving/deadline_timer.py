"""Ends the streams of one connection whose time has come by the node's wall clock, quiet ones too.

One task sleeps until the earliest of these times, however many streams there are. A follower then asks its leader how
far the partitions have come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tailrace.errors import TailraceError
from tailrace_server.replication.leaderships import lead_all

if TYPE_CHECKING:
    from tailrace_server.serving.services import OpenConnection

# A follower that cannot ask its leader tries again after this.
ASK_AGAIN_SECONDS = 1.0


class DeadlineTimer:
    """The times at which streams of ``connection`` end."""

    def __init__(self, connection: OpenConnection) -> None:
        self._connection = connection
        self._changed: trio.Event | None = None  # while the task sleeps
        self._runs = False

    def check(self) -> None:
        """Starts or wakes the task: a stream that ends at a time was opened, or the wall clock may have been set."""
        if self._connection.rounds.deadlines.next_us is None:
            return
        if self._changed is not None:
            self._changed.set()
        if not self._runs:
            self._runs = True
            self._connection.nursery.start_soon(self._run)

    async def _run(self) -> None:
        connection = self._connection
        node, rounds = connection.node, connection.rounds
        while (until_us := rounds.deadlines.next_us) is not None:
            wall_us = node.clock.wall_us()
            if until_us > wall_us:
                self._changed = trio.Event()
                with trio.move_on_after((until_us - wall_us) / 1e6):
                    await self._changed.wait()
                self._changed = None
                continue
            accepted = None
            partitions = rounds.deadlines.partitions()
            if not lead_all(node.leaderships.of_partitions(partitions)):
                changes = node.leaderships.changes()
                try:
                    accepted = await node.leaderships.leaders_seqs(partitions)
                except (TailraceError, OSError):  # it may have rows from before that time that are not here yet
                    await trio.sleep(ASK_AGAIN_SECONDS)
                    continue
                if node.leaderships.changes() != changes or set(rounds.deadlines.partitions()) - set(partitions):
                    continue  # others were opened meanwhile
            if rounds.time_passed(wall_us, accepted):
                # The rows up to their ends may not be durable yet.
                node.storage.committer.hurry()
                connection.has_news()
                node.connections.turn_ended()
                await trio.lowlevel.checkpoint()  # there may be thousands
        self._runs = False
