"""Acts of clients that know one node only. They use a second feed, with few writes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

import tailrace
from tailrace.errors import OutcomeUnknown, Retryable, Unreachable

from .actor import Act, Actor, Report
from .readers import Looker
from .writers import Values, Writer

if TYPE_CHECKING:
    import random

    from .group import Group
    from .history import History
    from .network_acts import NetworkActs

# No row without a majority in this feed delays a client that looks at its keys.
BESIDE = "beside"
QUIET = [b"quiet %d" % number for number in range(10)]
SIZES = (1, 30, 300)
NEWCOMER_S = 2.0


class ClientActs(Actor):
    """Writes to the leader, and asks a former one. ``patience_s``: how long such a client waits for its answers."""

    def __init__(self, group: Group, history: History, rnd: random.Random, network: NetworkActs) -> None:
        """``history``: of the second feed."""
        super().__init__(group, history, rnd)
        self.patience_s = NEWCOMER_S
        self._network = network
        self._count = 0

    @property
    def table(self) -> list[tuple[int, Act]]:
        return [(2, self.write_anew)]

    async def write_anew(self) -> Report | None:
        """Lets a client without an earlier connection write, by the leader of the highest term."""
        leader = await self.group.leader()
        if leader is None:
            return None
        self._count += 1
        values = Values(self.random, f"newcomer {self._count}", QUIET, SIZES)
        writer = Writer(self.history, values, {}, level="quorum", lasting=True, of_set=True)
        answers, came_off = self.history.answers, False
        with trio.move_on_after(self.patience_s), contextlib.suppress(Unreachable, OutcomeUnknown):
            async with tailrace.connect(leader.url, name="newcomer") as client:
                for key in QUIET:
                    await writer.put_on(client.feed(BESIDE), key, None)
                came_off = self.history.answers == answers + len(QUIET)
        return Report(f"a newcomer has written to {leader.name}", came_off)

    async def ask_former(self) -> Report | None:
        """Asks the former leader, which was cut off, by a client that knows no other node."""
        former = self._network.former
        assert former is not None
        looker, came_off = Looker(self.history, self.random, QUIET, ["quorum"]), False
        with trio.move_on_after(self.patience_s), contextlib.suppress(Unreachable):
            async with tailrace.connect(former.url, name="loyal") as client:
                while not looker.looks:
                    with contextlib.suppress(Retryable):
                        await looker.look_at_some(client.feed(BESIDE))
                came_off = True
        return Report(f"{former.name} was asked for {looker.looks} keys", came_off)
