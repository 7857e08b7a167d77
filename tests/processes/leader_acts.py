"""Acts of an operator, who promotes nodes and hands the leadership over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .actor import Act, Actor, Report, require_words
from .group import run_command

if TYPE_CHECKING:
    from .node import NodeProcess


class LeaderActs(Actor):
    """Promotes, and hands over."""

    @property
    def table(self) -> list[tuple[int, Act]]:
        return [(3, self.promote), (4, self.handover)]

    async def promote(self) -> Report | None:
        return await self._promote_one_of(self.group.answering())

    async def promote_other(self) -> Report | None:
        leader = await self.group.leader()
        return await self._promote_one_of([node for node in self.group.answering() if node is not leader])

    async def _promote_one_of(self, nodes: list[NodeProcess]) -> Report | None:
        node = self.any(nodes)
        if node is None:
            return None
        code, said = await run_command("promote", "--node", node.address)
        require_words(said)
        return Report(f"promote {node.name}: {code}, {said.strip()}", code == 0)

    async def handover(self) -> Report | None:
        leader = await self.group.leader()
        other = self.any([node for node in self.group.running() if node is not leader])
        if leader is None or other is None:
            return None
        code, said = await run_command("handover", "--to", other.member, "--node", leader.address)
        require_words(said)
        return Report(f"handover {leader.name} to {other.name}: {code}, {said.strip()}", code == 0)
