"""A set of three nodes, each a process, whose leader dies where it is told to, or freezes.

order ──> the leader comes to the point, SIGKILL ──> another one is promoted ──> the dead one starts again, and follows
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import trio
from tests.processes.fixtures import NodeProcess
from tests.processes.ports import free_ports

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.trio import request
from tailrace.wire.opcodes import Opcode

DEATHS = Path(__file__).with_name("dying_node.py").read_text()
# On a busy machine; nothing here is expected to take so long.
PATIENCE_S = 120.0
ASK_S = 60.0
POLL_S = 0.05


class DyingSet:
    """Three nodes over ``folder``, all of them started; ``planted`` as of `NodeProcess`."""

    def __init__(self, folder, planted=""):
        self._order = folder / "order"
        ports = free_ports(3)
        planted = f"{DEATHS}\nDeaths({str(self._order)!r})\n{planted}"
        self.nodes = [NodeProcess(folder / str(port), planted=planted, port=port, members=ports) for port in ports]
        self.url = "tailrace://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        with ThreadPoolExecutor() as threads:
            list(threads.map(NodeProcess.start, self.nodes))

    def leader(self):
        """Who leads, once one does and the others follow it."""
        return _until(self._settled_leader)

    def order(self, point):
        """The leader is to die at ``point``, one of those of ``dying_node.py``."""
        assert not self._order.exists(), "nobody has died of the last order"
        self._order.write_text(point)

    def replace_dead(self):
        """Once the leader has died of the order, or is frozen, another one is promoted."""
        self._promote_another(_until(self._dead))

    def _dead(self):
        return next((node for node in self.nodes if node.is_running and (node.died() or _is_frozen(node))), None)

    def _promote_another(self, dead):
        """One that had not caught up yet may be refused: then it is the other one."""
        others = [node for node in self.nodes if node is not dead]
        _until(lambda: next((node for node in others if _ask(node, Opcode.PROMOTE, force=False)), None))

    def revive(self):
        """The dead start again, the frozen go on, and both follow."""
        for node in self.nodes:
            if not node.is_running:
                node.start()
            elif _is_frozen(node):
                os.kill(node.pid, signal.SIGCONT)
        self.leader()

    def _settled_leader(self):
        told = {node: _ask(node, Opcode.MEMBER) for node in self.nodes if node.is_running}
        leaders = [node for node, answer in told.items() if answer and answer["role"] == "leader"]
        is_settled = len(leaders) == 1 and all(
            answer and answer["leader"] == _address(leaders[0]) for answer in told.values()
        )
        return leaders[0] if is_settled else None

    def become_level(self):
        """Returns once all nodes hold equally much of each partition."""

        def are_level():
            told = [_ask(node, Opcode.MEMBER, seqs=True) for node in self.nodes]
            return all(answer and answer["seqs"] == told[0]["seqs"] for answer in told) or None

        _until(are_level)

    def end(self):
        """Every node stops cleanly, after a look at its invariants."""
        for node in self.nodes:
            if node.is_running and _is_frozen(node):  # the test has failed
                node.kill()
            node.stop()


def _is_frozen(node):
    return Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _address(node):
    return f"127.0.0.1:{node.port}"


def _ask(node, opcode, **value):
    """The node's answer; None where it has none, or refuses."""
    with contextlib.suppress(TailraceError):
        return trio.run(lambda: request.ask(Address("127.0.0.1", node.port), opcode, value, timeout_s=ASK_S))
    return None


def _until(found):
    """What ``found()`` gives, once it is something."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        result = found()
        if result is not None:
            return result
        time.sleep(POLL_S)
    raise AssertionError("the set has not come to it in time")
