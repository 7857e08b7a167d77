"""A group of node processes: one node, or the members of a set with a network between them that can be broken.

`NodeProcess` waits in the calling thread. Here each wait is a thread's, so that clients go on meanwhile.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import trio

from tailrace.testing.ports import free_port, free_ports

from .forks import COMMAND, Fork
from .network import Network
from .node import HOST, NodeFailed, NodeProcess
from .program import Orders

# Far more seconds than a command takes on a busy machine.
COMMAND_S = 120.0


class Group:
    """``count`` nodes in a folder, and the network between them.

    Args:
        folder: The folder of their data directories and logs.
        count: How many; a single one is no member of a set.
        orders: How their processes differ from the plain command.
        failover: Their option ``--failover``.
        store: Their option ``--cluster-store``; "" if ``--members`` lists them.
        can_trouble: Their disks can be in trouble (troubled_disk.py).

    Attributes:
        nodes: Those that belong together. ``network`` has the links between them. ``former``: those that did.
        url: The addresses of the nodes that are there from the start.
        is_storeless: The store of the members does not answer: a node that never saw it cannot start.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        orders: Orders | None = None,
        *,
        failover: str = "manual",
        store: str = "",
        can_trouble: bool = False,
    ) -> None:
        ports = free_ports(count)
        self.failover = failover
        self.kills = 0
        self.network = Network(folder)
        self.nodes: list[NodeProcess] = []
        self.former: list[NodeProcess] = []
        self.is_storeless = False
        self._folder = folder
        self._store = store
        self._can_trouble = can_trouble
        self._orders = orders or Orders()
        self._killed = trio.Event()
        addresses = [f"{HOST}:{port}" for port in ports]
        self.url = f"tailrace://{','.join(addresses)}"
        for port in ports:
            self.nodes.append(self._make(port, addresses, f"n{len(self.nodes)}"))
        self._made = count

    def _make(self, port: int, addresses: list[str], name: str) -> NodeProcess:
        is_member, log_path = len(addresses) > 1, self._folder / f"{name}.log"
        options: list[str] = []
        if self._store:
            options = ["--cluster-store", self._store, "--cluster", "acts", "--failover", self.failover]
        elif is_member:
            options = ["--members", ",".join(addresses), "--failover", self.failover]
        level = "info" if is_member else "warning"
        return NodeProcess(
            self._folder / name, self._orders, port=port, options=options, log_path=log_path, log_level=level
        )

    async def connect(self, nursery: trio.Nursery) -> None:
        """Opens the links between the nodes. They last as long as the nursery."""
        self.network.open(nursery)
        await self._link(self.nodes)

    async def _link(self, new: list[NodeProcess]) -> None:
        await self.network.add(self.nodes, new)
        for node in new:
            order = str(self._folder / f"{node.name}.disk") if self._can_trouble else ""
            node.orders = dataclasses.replace(self._orders, routes=str(self.network.path(node)), disk_order=order)

    async def add(self) -> NodeProcess:
        """Makes one more node, which is not started. Its list has itself behind the present members."""
        port, name = free_port(), f"n{self._made}"
        self._made += 1
        node = self._make(port, [*(member.member for member in self.nodes), f"{HOST}:{port}"], name)
        self.nodes.append(node)
        await self._link([node])
        return node

    def dismiss(self, node: NodeProcess) -> None:
        """Notes that a node is no member any more."""
        self.nodes.remove(node)
        self.former.append(node)

    async def move(self, node: NodeProcess) -> None:
        """Gives a node that does not run another address."""
        node.port = free_port()
        await self._link([node])

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
        for node in [*self.nodes, *self.former]:
            await trio.to_thread.run_sync(node.stop)

    def end_at_once(self) -> None:
        """Ends every process, for instance after a run that has failed."""
        for node in [*self.nodes, *self.former]:
            node.end_at_once()

    @property
    def has_store(self) -> bool:
        """Whether the members are in a store, and not in lists."""
        return bool(self._store)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with the network, the store and the disks."""
        return not (self.network.is_torn or self.is_storeless or any(node.disk_trouble for node in self.nodes))

    @property
    def url_now(self) -> str:
        """The addresses of the present nodes."""
        return f"tailrace://{','.join(node.address for node in self.nodes)}"

    def startable(self) -> list[NodeProcess]:
        """Returns the nodes that do not run, without those that the store would have to tell who the members are."""
        return [
            node
            for node in self.nodes
            if not node.is_running and (not self.is_storeless or (node.data / "CLUSTER").exists())
        ]

    def running(self) -> list[NodeProcess]:
        """Returns the nodes that run, paused or not."""
        return [node for node in self.nodes if node.is_running]

    def answering(self) -> list[NodeProcess]:
        """Returns the nodes that run, are not paused, and wait for no fsync."""
        return [node for node in self.running() if not node.is_paused and node.disk_trouble != "hangs"]

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

    # Logs and directories

    def log_tail(self) -> str:
        """Returns the last lines that each node has logged."""
        return "\n".join(node.log_tail() for node in self.nodes)

    async def verify(self) -> None:
        """Raises NodeFailed if a directory is damaged, or a log has an error that was not expected."""
        for node in [*self.nodes, *self.former]:
            code, said = await run_command("verify", str(node.data))
            if code:
                raise NodeFailed(f"the directory of {node.name} is not in order: {said}")
            node.check_log()


async def start(node: NodeProcess) -> None:
    """Starts a node. A cancelled start leaves no process that the node does not know."""
    await trio.to_thread.run_sync(node.launch)
    await trio.to_thread.run_sync(node.require_ready, abandon_on_cancel=True)


async def run_command(*arguments: str, seconds: float = COMMAND_S) -> tuple[int, str]:
    """Runs ``tailrace`` with these arguments. Returns its exit code and its output."""
    with trio.move_on_after(seconds), tempfile.TemporaryFile() as errors:
        process = await trio.to_thread.run_sync(Fork, COMMAND, arguments, Path.cwd(), errors)
        try:
            out = await trio.to_thread.run_sync(process.finish, abandon_on_cancel=True)
        finally:
            process.kill()
        errors.seek(0)
        return process.wait(), (out + errors.read()).decode(errors="replace")
    raise NodeFailed(f"tailrace {' '.join(arguments)} takes longer than {seconds:g} s")
