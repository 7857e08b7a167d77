"""Acts on the processes of nodes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import trio

from .actor import Act, Actor, Report

if TYPE_CHECKING:
    from .node import NodeProcess


class NodeActs(Actor):
    """Kills nodes, pauses them, and starts them again, also on an empty disk."""

    @property
    def table(self) -> list[tuple[int, Act]]:
        return [
            (3, self.kill_leader),
            (2, self.kill_any),
            (3, self.start_all),
            (2, self.pause),
            (1, self.restart),
            (1, self.replace_disk),
        ]

    async def mend(self) -> list[str]:
        paused = [node for node in self.group.nodes if node.is_paused]
        for node in paused:
            node.proceed()
        return [f"{node.name} goes on" for node in paused]

    async def kill_leader(self) -> Report | None:
        return await self._kill(await self.group.leader(), "the leader ")

    async def kill_any(self) -> Report | None:
        return await self._kill(self.any(self.group.running()), "")

    async def _kill(self, node: NodeProcess | None, what: str) -> Report | None:
        if node is None:
            return None
        await self.group.kill(node)
        return Report(f"SIGKILL for {what}{node.name}")

    async def start_all(self) -> Report | None:
        away = self.group.startable()
        for node in away:
            node.mend_disk()
        await self.group.start(away)
        return Report(f"started {[node.name for node in away]}") if away else None

    async def restart(self) -> Report | None:
        node = self.any([node for node in self.group.running() if not node.disk_trouble])
        if node is None:
            return None
        await trio.to_thread.run_sync(node.stop)
        await self.group.start([node])
        return Report(f"stopped {node.name} and started it again")

    async def replace_disk(self) -> Report | None:
        """Starts a member with an empty disk. If that is one member at a time, nothing at quorum is lost."""
        if not self.group.is_sound or not await self.all_vote():
            return None
        node = self.random.choice(self.group.nodes)
        await self.group.kill(node)
        shutil.rmtree(node.data)
        await self.group.start([node])
        return Report(f"{node.name} has lost its disk, and starts with an empty one")

    async def pause(self) -> Report | None:
        node = self.any(self.group.answering())
        if node is None:
            return None
        node.pause()
        return Report(f"SIGSTOP for {node.name}")
