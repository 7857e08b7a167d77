"""Acts on the links between nodes. Clients reach all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .actor import Act, Actor, Report

if TYPE_CHECKING:
    from .node import NodeProcess


class NetworkActs(Actor):
    """Cuts, freezes and mutes links. ``former``: the leader that was cut off last."""

    former: NodeProcess | None = None

    @property
    def table(self) -> list[tuple[int, Act]]:
        return [(2, self.cut), (1, self.cut_pair), (1, self.freeze), (1, self.refuse), (2, self.mute)]

    async def mend(self) -> list[str]:
        if not self.group.network.is_torn:
            return []
        self.group.network.heal()
        return ["all connected"]

    async def cut(self) -> Report | None:
        node = self.random.choice(self.group.nodes)
        self.group.network.cut_off(node)
        return Report(f"cut {node.name} off")

    async def cut_pair(self) -> Report | None:
        one, other = self.random.sample(self.group.nodes, 2)
        self.group.network.cut(one, other)
        return Report(f"cut {one.name} from {other.name}")

    async def freeze(self) -> Report | None:
        node = self.random.choice(self.group.nodes)
        self.group.network.freeze(node)
        return Report(f"froze the network of {node.name}")

    async def refuse(self) -> Report | None:
        """Lets a node make no connection to another one, which may connect to it."""
        one, other = self.random.sample(self.group.nodes, 2)
        self.group.network.refuse(one, other)
        return Report(f"{other.name} refuses connections of {one.name}")

    async def mute(self) -> Report | None:
        """Lets a node hear others that do not hear it; often the leader, often all others."""
        node = await self.group.leader() if self.random.random() < 0.5 else None
        node = node or self.random.choice(self.group.nodes)
        others = [other for other in self.group.nodes if other is not node]
        if self.random.random() < 0.5:
            others = self.random.sample(others, 1)
        return self._mute(node, others)

    async def mute_leader(self) -> Report | None:
        leader = await self.group.leader()
        if leader is None:
            return None
        return self._mute(leader, [node for node in self.group.nodes if node is not leader])

    def _mute(self, node: NodeProcess, others: list[NodeProcess]) -> Report:
        self.group.network.mute(node, others)
        return Report(f"{node.name} hears {[other.name for other in others]}, and is not heard")

    async def cut_leader(self) -> Report | None:
        leader = await self.group.leader()
        if leader is None:
            return None
        self.former = leader
        self.group.network.cut_off(leader)
        return Report(f"cut the leader {leader.name} off")
