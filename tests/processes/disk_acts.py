"""Acts on the disks of nodes (troubled_disk.py)."""

from __future__ import annotations

from .actor import Act, Actor, Report


class DiskActs(Actor):
    """Lets disks hang, fail and be full, every other one of them the leader's."""

    @property
    def table(self) -> list[tuple[int, Act]]:
        return [(1, self.hang), (1, self.fail), (1, self.fill), (1, self.narrow)]

    async def mend(self) -> list[str]:
        """Ends the troubles. A node whose disk has failed leads and follows only after a restart."""
        troubled = [node for node in self.group.nodes if node.disk_trouble]
        told = [f"the disk of {node.name} no longer {node.disk_trouble}" for node in troubled]
        failed = [node for node in troubled if node.disk_trouble == "fails" and node.is_running]
        for node in failed:
            await self.group.kill(node)
        for node in troubled:
            node.mend_disk()
        await self.group.start(failed)
        return told

    async def hang(self) -> Report | None:
        return await self._trouble("hangs")

    async def fail(self) -> Report | None:
        return await self._trouble("fails")

    async def fill(self) -> Report | None:
        return await self._trouble("full")

    async def narrow(self) -> Report | None:
        return await self._trouble("low")

    async def _trouble(self, trouble: str) -> Report | None:
        sound = [node for node in self.group.answering() if not node.disk_trouble]
        leader = await self.group.leader()
        node = leader if leader in sound and self.random.random() < 0.5 else self.any(sound)
        if node is None:
            return None
        node.trouble_disk(trouble)
        return Report(f"the disk of {'the leader ' if node is leader else ''}{node.name}: {trouble}")
