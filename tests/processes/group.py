"""A group of node processes: one node, or the members of a set with a network between them that can be broken.

`NodeProcess` waits in the calling thread. Here each wait is a thread's, so that clients go on meanwhile.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import trio

from .forks import COMMAND, Fork
from .node import HOST, NodeFailed, NodeProcess
from .ports import free_ports
from .program import Orders
from .proxy import Proxy

# Far more seconds than a command takes on a busy machine.
COMMAND_S = 120.0


class Group:
    """``count`` nodes in a folder, and the links between them.

    Args:
        folder: The folder of their data directories and logs.
        count: How many; a single one is no member of a set.
        orders: How their processes differ from the plain command.
        failover: Their option ``--failover``.
    """

    def __init__(self, folder: Path, count: int, orders: Orders | None = None, *, failover: str = "manual") -> None:
        ports = free_ports(count)
        addresses = ",".join(f"{HOST}:{port}" for port in ports)
        self.url = f"tailrace://{addresses}"
        self.nodes: list[NodeProcess] = []
        self.failover = failover
        self.kills = 0
        self.is_torn = False  # a link is cut or frozen
        self._proxies: dict[tuple[int, int], Proxy] = {}
        self._orders = orders or Orders()
        self._killed = trio.Event()
        for index, port in enumerate(ports):
            self._proxies |= {(port, other): Proxy((HOST, other)) for other in ports if other != port}
            options = ["--members", addresses, "--failover", failover] if count > 1 else []
            name, level = f"n{index}", "info" if count > 1 else "warning"
            log_path = folder / f"{name}.log"
            node = NodeProcess(
                folder / name, self._orders, port=port, options=options, log_path=log_path, log_level=level
            )
            self.nodes.append(node)

    async def connect(self, nursery: trio.Nursery) -> None:
        """Opens the links between the nodes. They last as long as the nursery."""
        for proxy in self._proxies.values():
            await nursery.start(proxy.run)
        for node in self.nodes:
            routes = {str(other): proxy.port for (port, other), proxy in self._proxies.items() if port == node.port}
            node.orders = dataclasses.replace(self._orders, routes=routes)

    # Processes

    async def start(self, nodes: list[NodeProcess]) -> None:
        """Starts these nodes at once. Returns when all answer."""
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(start, node)

    async def kill(self, node: NodeProcess) -> None:
        """Sends the node SIGKILL, and waits for its end."""
        await trio.to_thread.run_sync(node.kill)
        self.was_killed()

    def was_killed(self) -> None:
        """Counts a kill, and wakes the tasks that wait for one."""
        self.kills += 1
        self._killed.set()
        self._killed = trio.Event()

    async def killed(self) -> None:
        """Waits for the next kill."""
        await self._killed.wait()

    async def stop(self) -> None:
        """Stops every node cleanly."""
        for node in self.nodes:
            await trio.to_thread.run_sync(node.stop)

    def end_at_once(self) -> None:
        """Ends every process, for instance after a run that has failed."""
        for node in self.nodes:
            node.end_at_once()

    def running(self) -> list[NodeProcess]:
        """Returns the nodes that run, paused or not."""
        return [node for node in self.nodes if node.is_running]

    def answering(self) -> list[NodeProcess]:
        """Returns the nodes that run and are not paused."""
        return [node for node in self.running() if not node.is_paused]

    async def leader(self) -> NodeProcess | None:
        """Returns the node that says that it leads, of several the one of the highest term."""
        found: dict[int, NodeProcess] = {}

        async def look(node: NodeProcess) -> None:
            answer = await node.ask()
            if answer is not None and answer.get("role") == "leader":
                found[answer["term"]] = node

        async with trio.open_nursery() as nursery:
            for node in self.answering():
                nursery.start_soon(look, node)
        return found[max(found)] if found else None

    # The network

    def _links_of(self, node: NodeProcess) -> list[Proxy]:
        return [proxy for ends, proxy in self._proxies.items() if node.port in ends]

    def cut_off(self, node: NodeProcess) -> None:
        """Cuts every link of a node to the others. Clients reach all nodes."""
        self.is_torn = True
        for proxy in self._links_of(node):
            proxy.cut()

    def cut(self, one: NodeProcess, other: NodeProcess) -> None:
        """Cuts the links between two nodes, both ways. Others reach both."""
        self.is_torn = True
        for ends, proxy in self._proxies.items():
            if set(ends) == {one.port, other.port}:
                proxy.cut()

    def freeze(self, node: NodeProcess) -> None:
        """Freezes every link of a node to the others, so that no side is told."""
        self.is_torn = True
        for proxy in self._links_of(node):
            proxy.freeze()

    def heal(self) -> None:
        """Mends every link."""
        self.is_torn = False
        for proxy in self._proxies.values():
            proxy.heal()

    # Logs and directories

    def log_tail(self) -> str:
        """Returns the last lines that each node has logged."""
        return "\n".join(node.log_tail() for node in self.nodes)

    async def verify(self) -> None:
        """Raises NodeFailed if a directory is damaged, or a log has an error that was not expected."""
        for node in self.nodes:
            code, said = await run_command("verify", str(node.data))
            if code:
                raise NodeFailed(f"the directory of {node.name} is not in order: {said}")
            node.check_log()


async def start(node: NodeProcess) -> None:
    """Starts a node. A cancelled start leaves no process that the node does not know."""
    await trio.to_thread.run_sync(node.launch)
    await trio.to_thread.run_sync(node.require_ready, abandon_on_cancel=True)


async def run_command(*arguments: str) -> tuple[int, str]:
    """Runs ``tailrace`` with these arguments. Returns its exit code and its output."""
    with trio.move_on_after(COMMAND_S), tempfile.TemporaryFile() as errors:
        process = await trio.to_thread.run_sync(Fork, COMMAND, arguments, Path.cwd(), errors)
        try:
            out = await trio.to_thread.run_sync(process.finish, abandon_on_cancel=True)
        finally:
            process.kill()
        errors.seek(0)
        return process.wait(), (out + errors.read()).decode(errors="replace")
    raise NodeFailed(f"tailrace {' '.join(arguments)} takes longer than {COMMAND_S:g} s")
