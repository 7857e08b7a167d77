"""Three nodes of a set, each a process of the real command, with a network between them that can be broken."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import trio
from tests.processes.ports import free_ports

from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode

from .proxy import HOST, Proxy

SCRIPT = Path(__file__).with_name("node_process.py")
COMMAND = (sys.executable, "-c", "from tailrace.cli import main; main()")
# What a node's log has where something went wrong that no answer tells.
ALARMS = ("Traceback", "internal error")
# On a busy machine; nothing here is expected to take so long.
START_S = 120.0
COMMAND_S = 120.0
ASK_S = 20.0


class NodeFailed(AssertionError):
    """A node has done what no node does."""


class Node:
    """A process. ``links``: by the port of each other one, the proxy on the way to it. ``bug``: of `node_process`."""

    def __init__(
        self, name: str, port: int, directory: Path, links: dict[int, Proxy], options: list[str], bug: str = ""
    ) -> None:
        self.name = name
        self.port = port
        self.address = f"{HOST}:{port}"
        self.url = f"tailrace://{self.address}"
        self.data = directory / name
        self.log_path = directory / f"{name}.log"
        self.links = links
        self.bug = bug
        self.kills = 0
        self.is_paused = False
        self.options = options
        self._process: trio.Process | None = None

    @property
    def is_running(self) -> bool:
        """There is a process, which may be paused."""
        return self._process is not None

    async def start(self) -> None:
        """Starts it; returns once it answers."""
        routes = {port: proxy.port for port, proxy in self.links.items()}
        orders = json.dumps({"routes": routes, "bug": self.bug})
        command = [sys.executable, str(SCRIPT), orders, "serve", "--data", str(self.data), "--listen", self.address]
        command += [*self.options, "--http", "off", "--ws", "off", "--log-level", "info"]
        with trio.CancelScope(shield=True), self.log_path.open("ab") as log:
            self._process = await trio.lowlevel.open_process(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        line = b""
        with trio.move_on_after(START_S):
            while not line.endswith(b"\n"):
                data = await self._process.stdout.receive_some()
                if not data:
                    break
                line += data
        if not re.match(rb"tailrace: ready, frames on .*\n", line):
            raise NodeFailed(f"{self.name} has not come up, and says {line!r}:\n{self.log_tail()}")

    async def kill(self) -> None:
        """SIGKILL."""
        self.kills += 1
        self._process.kill()
        await self._ended(-signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM."""
        self.proceed()
        self._process.terminate()
        await self._ended(0)

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, and it says nothing."""
        self._process.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def proceed(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    async def _ended(self, expected: int) -> None:
        process, self._process, self.is_paused = self._process, None, False
        with trio.CancelScope(shield=True), trio.move_on_after(START_S):
            code = await process.wait()
            await process.stdio.aclose()
            if code != expected:
                raise NodeFailed(f"{self.name} has ended with {code}, not {expected}:\n{self.log_tail()}")
            return
        process.kill()
        raise NodeFailed(f"{self.name} does not end:\n{self.log_tail()}")

    async def end_at_once(self) -> None:
        """For a test that has failed: whatever state it is in, nothing of it is left."""
        process, self._process = self._process, None
        if process is not None:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                await process.stdio.aclose()

    async def ask(self, opcode: Opcode = Opcode.MEMBER, value: dict | None = None) -> dict | None:
        """What it answers to a request between nodes; None where it does not answer."""
        with trio.move_on_after(ASK_S), contextlib.suppress(OSError):
            async with await trio.open_tcp_stream(HOST, self.port) as stream:
                return await _exchange(stream, opcode, value or {})
        return None

    def log_tail(self) -> str:
        """The last lines that it has logged."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return "\n".join(f"{self.name}: {line}" for line in lines[-15:])

    def check_log(self) -> None:
        """It has met no error that it did not expect."""
        text = self.log_path.read_text()
        found = [alarm for alarm in ALARMS if alarm in text]
        if found:
            at = text.index(found[0])
            raise NodeFailed(f"{self.name} has logged an error:\n{text[max(at - 1_000, 0) : at + 4_000]}")


async def _exchange(stream: trio.SocketStream, opcode: Opcode, value: dict) -> dict:
    await stream.send_all(Hello().encode() + encode_json(opcode, value, 1))
    decoder = FrameDecoder()
    while True:
        data = await stream.receive_some()
        if not data:
            raise OSError("the node has closed the connection")
        for frame in decoder.receive_data(bytes(data)):
            if frame.opcode is Opcode.RESULT:
                return decode_json(frame.body, "RESULT")
            if frame.opcode is Opcode.ERROR:
                return {"error": decode_json(frame.body, "ERROR")}


class Nodes:
    """The set and what connects it. ``start`` first."""

    def __init__(self, directory: Path, count: int = 3, bug: str = "") -> None:
        ports = free_ports(count)
        members = ",".join(f"{HOST}:{port}" for port in ports)
        self._proxies: dict[tuple[int, int], Proxy] = {}
        self.all: list[Node] = []
        for index, port in enumerate(ports):
            links = {other: Proxy((HOST, other)) for other in ports if other != port}
            self._proxies |= {(port, other): proxy for other, proxy in links.items()}
            self.all.append(Node(f"n{index}", port, directory, links, ["--members", members], bug))
        self.url = f"tailrace://{members}"
        self.is_torn = False  # something between them is cut or frozen

    async def start(self, nursery: trio.Nursery) -> None:
        """The links, and then all nodes at once."""
        for proxy in self._proxies.values():
            await nursery.start(proxy.run)
        async with trio.open_nursery() as starting:
            for node in self.all:
                starting.start_soon(node.start)

    def links_of(self, node: Node) -> list[Proxy]:
        """All ways between it and the others."""
        return [proxy for ends, proxy in self._proxies.items() if node.port in ends]

    def cut_off(self, node: Node) -> None:
        """It reaches no other node, and no other node reaches it; clients reach all."""
        self.is_torn = True
        for proxy in self.links_of(node):
            proxy.cut()

    def freeze(self, node: Node) -> None:
        """Likewise, but that nobody is told."""
        self.is_torn = True
        for proxy in self.links_of(node):
            proxy.freeze()

    def heal(self) -> None:
        """Every node reaches every other one."""
        self.is_torn = False
        for proxy in self._proxies.values():
            proxy.heal()

    async def leader(self) -> Node | None:
        """Who says that it leads, of several the one of the highest term; None where nobody does."""
        found: dict[int, Node] = {}

        async def look(node: Node) -> None:
            answer = await node.ask()
            if answer is not None and answer.get("role") == "leader":
                found[answer["term"]] = node

        async with trio.open_nursery() as nursery:
            for node in self.all:
                if node.is_running and not node.is_paused:
                    nursery.start_soon(look, node)
        return found[max(found)] if found else None

    async def end_at_once(self) -> None:
        """For a test that has failed."""
        for node in self.all:
            await node.end_at_once()

    def log_tail(self) -> str:
        """The last lines of all nodes."""
        return "\n".join(node.log_tail() for node in self.all)


async def run_command(*arguments: str) -> tuple[int, str]:
    """``tailrace`` with these arguments: its exit code and all that it said."""
    with trio.move_on_after(COMMAND_S):
        done = await trio.run_process(
            [*COMMAND, *arguments], capture_stdout=True, capture_stderr=True, check=False, stdin=b""
        )
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace")
    raise NodeFailed(f"tailrace {' '.join(arguments)} takes longer than {COMMAND_S:g} s")
