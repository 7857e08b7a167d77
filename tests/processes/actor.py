"""An actor of a run of `Acts`: it breaks one part of a set, and mends it.

NodeActs (node_acts.py)          processes: killed, paused, started again, with an empty disk
NetworkActs (network_acts.py)    links: cut, frozen, mute in one direction
DiskActs (disk_acts.py)          disks that hang, fail or are full
LeaderActs (leader_acts.py)      promotions and handovers, by an operator
MemberActs (member_acts.py)      members that are added, removed, replaced and moved
StoreActs (store_acts.py)        the etcd that keeps the members
ClientActs (client_acts.py)      clients that know one node only
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from .violation import Violation

if TYPE_CHECKING:
    import random

    from .group import Group
    from .history import History
    from .node import NodeProcess


class Report(NamedTuple):
    """What an act did. ``came_off``: it had its effect; some acts may be refused."""

    text: str
    came_off: bool = True


# Returns None if there was nothing to do.
Act = Callable[[], Awaitable[Report | None]]


class Actor:
    """Acts on one part of a set. ``table``: its acts by chance, each with a weight; methods may have more of them."""

    def __init__(self, group: Group, history: History, rnd: random.Random) -> None:
        self.group = group
        self.history = history
        self.random = rnd

    @property
    def table(self) -> list[tuple[int, Act]]:
        return []

    async def mend(self) -> list[str]:
        """Ends all troubles that the acts have made. Returns what was done."""
        return []

    def any(self, nodes: list[NodeProcess]) -> NodeProcess | None:
        """Returns one of the nodes; None if there is none."""
        return self.random.choice(nodes) if nodes else None

    async def votes(self, node: NodeProcess) -> bool:
        """Returns whether a node answers, and says that it votes."""
        return node in self.group.answering() and bool(((await node.ask()) or {}).get("votes"))

    async def all_vote(self) -> bool:
        """Returns whether all nodes vote. Then one disk may be lost, and nothing at quorum with it."""
        return all([await self.votes(node) for node in self.group.nodes])


def require_words(said: str) -> None:
    """Raises Violation if a command has failed in a way that no operator expects."""
    if "Traceback" in said or "No such command" in said:
        raise Violation(f"a command of the operator has failed: {said}")
