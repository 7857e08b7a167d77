"""A connection to another node of the cluster, for requests whose answers come in their order.

It tries nothing again. After an error its answers are out of step, so the caller makes another connection.
"""

from __future__ import annotations

import collections
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

from tailrace.errors import Forbidden, ProtocolError, Unreachable
from tailrace.link.address import Address
from tailrace.link.rules import SILENT_INTERVALS_MAX
from tailrace.trio.request import connected
from tailrace.trio.transport import Transport
from tailrace.wire.frames import Frame, FrameDecoder, encode_frame
from tailrace.wire.messages import Hello, HelloOk, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication.eligibility import why_other_cluster
from tailrace_server.replication.peers import name_of

if TYPE_CHECKING:
    from tailrace_server.replication.local_node import LocalNode


class PeerConnection:
    """Sends requests on ``transport``, and takes the answers one by one. One task uses it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._decoder = FrameDecoder()
        self._frames: collections.deque[Frame] = collections.deque()
        self._interval_s = 3.0  # until the node has told its interval
        self._id = 0

    async def greet(self, hello: Hello) -> HelloOk:
        """Greets the node, and returns its answer. Raises ProtocolError if it speaks another protocol."""
        self._transport.send(hello.encode())
        frame = await self._next()
        if frame.opcode is not Opcode.HELLO_OK:
            raise ProtocolError(f"the answer to HELLO is {frame.opcode.name}")
        peer = HelloOk.decode(frame.body)
        peer.check_version()
        self._interval_s = peer.noop_interval_s
        return peer

    async def _next(self) -> Frame:
        """Returns the next frame. Raises an ERROR as the error that it has."""
        silent = 0
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.opcode is Opcode.ERROR:
                    raise decode_error(frame.body)
                if frame.opcode is not Opcode.NOOP:
                    return frame
            data = None
            with trio.move_on_after(self._interval_s / 2):
                data = await self._transport.receive()
            if data is None:
                silent += 1
                if silent > 2 * SILENT_INTERVALS_MAX:
                    raise Unreachable(f"{self._transport.peer} is silent")
                self._transport.send(encode_frame(Opcode.NOOP))
                continue
            if not data:
                raise Unreachable(f"{self._transport.peer} has closed the connection")
            silent = 0
            self._frames.extend(self._decoder.receive_data(data))


_C = TypeVar("_C", bound=PeerConnection)


@asynccontextmanager
async def connected_peer(
    kind: Callable[[Transport], _C], node: LocalNode, address: Address, purpose: str, timeout_s: float
) -> AsyncIterator[tuple[_C, HelloOk]]:
    """A connection to the node at ``address``, and that node's greeting, while the body runs.

    Args:
        kind: Makes the connection.
        node: This node.
        address: The other node's.
        purpose: Begins the connection's name, which the other node's status shows.
        timeout_s: The seconds that the greeting may take.

    Raises:
        Unreachable: It does not answer in time.
        Forbidden: It is of another cluster.
        OSError: The connection broke.
    """
    with trio.move_on_after(timeout_s) as in_time:
        async with connected(node.host.network.connect, address) as transport:
            connection = kind(transport)
            name = f"{purpose} for {name_of(node)}"
            peer = await connection.greet(Hello(name=name, token=node.config.peer_token, of_node=True))
            why = why_other_cluster(node.identity.cluster_id, str(address), bytes.fromhex(peer.cluster_id))
            if why:
                raise Forbidden(f"{why}: nothing is taken")
            in_time.deadline = float("inf")
            yield connection, peer
    if in_time.cancelled_caught:
        raise Unreachable(f"{address} has not answered within {timeout_s:g} s")
