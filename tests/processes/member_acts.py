"""Acts of an operator who changes the members of a set, while all else goes wrong.

A change goes on beside other acts. Its command is now and then ended and called again, and is called again if it was
refused. Once all is healed each change has to come to its end.
"""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING

import trio

from .actor import Act, Actor, Report, require_words
from .group import run_command

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from .group import Group
    from .history import History
    from .node import NodeProcess

MEMBERS_MIN, MEMBERS_MAX = 3, 5
STAY = 2
# Between two commands of one change.
PAUSE_S = 0.5


class MemberActs(Actor):
    """Adds, removes, replaces and moves members, one at a time.

    The first two nodes stay at their addresses: a client that reads from followers knows those of its URL only.

    Attributes:
        is_over: Nothing more goes wrong: commands are not ended any more.
        changes: How many changes have come to their end.
    """

    def __init__(
        self, group: Group, history: History, rnd: random.Random, nursery: trio.Nursery, tell: Callable[[str], None]
    ) -> None:
        super().__init__(group, history, rnd)
        self.is_over = False
        self.changes = 0
        self._nursery = nursery
        self._tell = tell
        self._idle = trio.Event()
        self._idle.set()

    @property
    def table(self) -> list[tuple[int, Act]]:
        return [(2, self.add), (2, self.remove), (1, self.replace), (1, self.move)]

    async def settled(self) -> None:
        """Waits until the change that is under way has come to its end."""
        await self._idle.wait()

    async def add(self) -> Report | None:
        if self._is_busy or len(self.group.nodes) >= MEMBERS_MAX:
            return None
        node = await self._new()
        self._begin(self._follow, "add", node)
        return Report(f"{node.name} is to join")

    async def _new(self) -> NodeProcess:
        node = await self.group.add()
        await self.group.start([node])
        return node

    @property
    def _is_busy(self) -> bool:
        """Whether a change is under way, or no new node can start."""
        return not self._idle.is_set() or self.group.is_storeless

    async def remove(self) -> Report | None:
        if self._is_busy or len(self.group.nodes) <= MEMBERS_MIN:
            return None
        node = self.random.choice(self.group.nodes[STAY:])
        self._begin(self._remove, node)
        return Report(f"{node.name} is to leave")

    async def _remove(self, node: NodeProcess) -> None:
        await self._follow("remove", node)
        self.group.dismiss(node)
        if node.is_running:
            await self.group.kill(node)

    async def replace(self) -> Report | None:
        """Gives a member an empty disk, and follows that by the command."""
        if self._is_busy or not self.group.is_sound or not await self.all_vote():
            return None
        node = self.random.choice(self.group.nodes)
        self._begin(self._follow, "replace", node)
        await self.group.kill(node)
        shutil.rmtree(node.data)
        await self.group.start([node])
        return Report(f"the disk of {node.name} is replaced")

    async def move(self) -> Report | None:
        """Gives a member another address: with etcd by a restart, else another node takes its place."""
        if self._is_busy or len(self.group.nodes) >= MEMBERS_MAX:
            return None
        node = self.random.choice(self.group.nodes[STAY:])
        if self.group.has_store:
            if node.is_running:
                await self.group.kill(node)
            await self.group.move(node)
            node.mend_disk()
            await self.group.start([node])
            return Report(f"{node.name} has moved to {node.address}")
        new = await self._new()
        self._begin(self._exchange, node, new)
        return Report(f"{new.name} is to take the place of {node.name}")

    async def _exchange(self, node: NodeProcess, new: NodeProcess) -> None:
        await self._follow("add", new)
        await self._remove(node)

    def _begin(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        self._idle = trio.Event()
        self._nursery.start_soon(self._work, work, *arguments)

    async def _work(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        await work(*arguments)
        self._idle.set()

    async def _follow(self, action: str, node: NodeProcess) -> None:
        """Calls a command until it says that the change is over."""
        while True:
            is_short = not self.is_over and self.random.random() < 0.5
            seconds = self.random.uniform(0.2, 5.0) if is_short else math.inf
            with trio.move_on_after(seconds):
                code, said = await run_command(
                    "member", action, node.member, "--url", self.group.url_now, seconds=math.inf
                )
                require_words(said)
                last = said.strip().splitlines()[-1] if said.strip() else ""
                self._tell(f"member {action} {node.name}: {code}, {last}")
                if code == 0:
                    self.changes += 1
                    return
            await trio.sleep(PAUSE_S)
