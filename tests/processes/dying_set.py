"""A set of three nodes whose leader dies or freezes at a point that a test orders; for tests without async.

order ──> the leader comes to the point, SIGKILL ──> another one is promoted ──> the dead one starts again, and follows

With ``failover="auto"`` another one leads by itself.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

import trio

from tailrace.wire.opcodes import Opcode

from .group import Group
from .program import Orders

# Far more seconds than anything here takes on a busy machine.
PATIENCE_S = 120.0
POLL_S = 0.05


class DyingSet:
    """Three nodes over ``folder``, all of them started. ``deaths.py`` names the points."""

    def __init__(self, folder, failover="manual"):
        self._order = folder / "order"
        planted = f"from tests.processes.deaths import Deaths\nDeaths({str(self._order)!r})\n"
        self._group = Group(folder, 3, Orders(planted=planted), failover=failover)
        self.nodes, self.url = self._group.nodes, self._group.url
        trio.run(self._group.start, self.nodes)

    def leader(self):
        """Returns the leader, when there is one and the others follow it."""
        return _until(lambda: trio.run(self._settled_leader))

    def order(self, point):
        """Orders the leader to die at ``point``."""
        assert not self._order.exists(), "no node has died of the last order"
        self._order.write_text(point)

    def kill_leader(self):
        """Kills the leader at this moment."""
        self.leader().kill()

    def dead(self):
        """Returns the node that has died of the order, or is frozen, when there is one."""
        return _until(lambda: next((node for node in self._group.running() if node.died() or _is_frozen(node)), None))

    def replace_dead(self):
        """Waits until the leader has died of the order, or is frozen, and promotes another node."""
        dead = self.dead()
        # A node that has not caught up yet may refuse: then the other one is promoted.
        others = [node for node in self.nodes if node is not dead]
        _until(lambda: next((node for node in others if _ask(node, Opcode.PROMOTE, force=False)), None))

    def revive(self):
        """Starts the dead nodes and thaws the frozen ones. Returns when they follow."""
        for node in self.nodes:
            if not node.is_running:
                node.start()
            elif _is_frozen(node):
                node.proceed()
        self.leader()

    async def _settled_leader(self):
        told = {node: await node.ask() for node in self._group.running()}
        leaders = [node for node, answer in told.items() if answer and answer["role"] == "leader"]
        is_settled = len(leaders) == 1 and all(
            answer and answer["leader"] == leaders[0].address for answer in told.values()
        )
        return leaders[0] if is_settled else None

    def become_level(self):
        """Waits until all nodes hold equally much of each partition."""

        def are_level():
            told = [_ask(node, Opcode.MEMBER, seqs=True) for node in self.nodes]
            return all(answer and answer["seqs"] == told[0]["seqs"] for answer in told) or None

        _until(are_level)

    def end(self):
        """Stops every node cleanly, after a check of its invariants."""
        for node in self._group.running():
            if _is_frozen(node):  # the test has failed
                node.kill()
            node.stop()


def _is_frozen(node):
    return Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _ask(node, opcode, **value):
    return trio.run(functools.partial(node.ask, opcode, **value))


def _until(found):
    """Returns the first result of ``found()`` that is not None."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        result = found()
        if result is not None:
            return result
        time.sleep(POLL_S)
    raise AssertionError(f"the set has not come to it within {PATIENCE_S:g} s")
