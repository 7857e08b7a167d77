"""A set of nodes that follow one leader, each in a process of its own."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from tailrace.testing.node import HOST, Node, NodeFailed
from tailrace.testing.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# Far more seconds than an election takes on a busy machine.
LEADER_S = 120.0
LOOK_S = 0.01


class NodeSet:
    """A set of nodes. `tailrace.testing.node_set` and the fixture ``tailrace_set`` make sets.

    Args:
        folder: The folder for the directories and logs of the members.
        count: The number of members.
        options: More options of ``tailrace serve`` for each member.

    Attributes:
        nodes: The members, each a `Node`.
        url: The addresses of all members, for ``tailrace.connect``.
    """

    def __init__(self, folder: Path, count: int = 3, options: Sequence[str] = ()) -> None:
        ports = free_ports(count)
        members = ",".join(f"{HOST}:{port}" for port in ports)
        self.url = f"tailrace://{members}"
        self.nodes = [
            Node(
                folder / f"member-{number}",
                port=port,
                options=["--members", members, *options],
                log_path=folder / f"member-{number}.log",
                is_member=True,
            )
            for number, port in enumerate(ports)
        ]

    def __repr__(self) -> str:
        return f"<NodeSet {self.nodes}>"

    def start(self) -> None:
        """Starts every member that does not run. Returns when one of them leads.

        Raises:
            NodeFailed: A member has ended, or none leads.
        """
        starting = [node for node in self.nodes if not node.is_running]
        for node in starting:
            node.launch()
        for node in starting:
            node.require_ready()
        self.leader()

    def leader(self) -> Node:
        """Waits until a member leads, if none does.

        Returns:
            The leader, of several the one of the highest term.

        Raises:
            NodeFailed: No member leads, or one has ended by itself.
        """
        deadline = time.monotonic() + LEADER_S
        while True:
            leaders = {term: node for node, leads, term in self._roles() if leads}
            if leaders:
                return leaders[max(leaders)]
            if time.monotonic() > deadline:
                raise NodeFailed(f"no member leads after {LEADER_S:g} s:\n{self.log_tail()}")
            time.sleep(LOOK_S)

    def followers(self) -> list[Node]:
        """Waits until a member leads.

        Returns:
            The other members that run.

        Raises:
            NodeFailed: No member leads.
        """
        leader = self.leader()
        return [node for node in self.nodes if node is not leader and node.is_running]

    def _roles(self) -> Iterator[tuple[Node, bool, int]]:
        """Returns the members that run, whether each leads, and its term."""
        for node in self.nodes:
            if node.is_running and not node.is_paused:
                role, term = node.order("role").split()
                yield node, role == "leader", int(term)

    def failover(self) -> Node:
        """Kills the leader, and waits until another member leads. ``start`` of the set starts the former leader again.

        Returns:
            The new leader.

        Raises:
            NodeFailed: A majority of the members does not run, or no other member leads.
        """
        leader = self.leader()
        if 2 * (sum(node.is_running for node in self.nodes) - 1) <= len(self.nodes):
            raise NodeFailed("no majority would be left without the leader: start() the set first")
        leader.kill()
        return self.leader()

    @contextlib.contextmanager
    def lose_writes(self) -> Iterator[None]:
        """Loses everything that is written while the body runs, as if all members got their disks of before.

        After the body all members are killed, get their directories of before, and are started again. Programs that
        have seen a lost write get a `tailrace.Rollback`. If the body raises, nothing is lost.

        Raises:
            NodeFailed: A member does not run, or has not come up again.
        """
        self.start()
        with contextlib.ExitStack() as disks:
            put_back = [disks.enter_context(node.old_disk()) for node in self.nodes]
            yield
            for node in self.nodes:
                node.end_at_once()
            for put in put_back:
                put()
            self.start()

    def stop(self) -> None:
        """Stops every member that runs.

        Raises:
            NodeFailed: A member has ended with an error.
        """
        for node in self.nodes:
            node.stop()

    def end_at_once(self) -> None:
        """Ends every process, in whatever state it is."""
        for node in self.nodes:
            node.end_at_once()

    def log_tail(self) -> str:
        """Returns the last lines that each member has logged."""
        return "\n".join(node.log_tail() for node in self.nodes)
