"""Sends one request to one given node, on a connection of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from tailrace.errors import ProtocolError, Unreachable
from tailrace.link.address import Address
from tailrace.link.finder import check_cluster
from tailrace.link.rules import SILENT_INTERVALS_MAX
from tailrace.trio.tcp import connect_tcp
from tailrace.trio.transport import Connect, Transport
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import FrameDecoder, encode_frame
from tailrace.wire.messages import Hello, HelloOk, decode_error
from tailrace.wire.opcodes import Opcode

_ID = 1


async def ask(
    address: Address,
    opcode: Opcode,
    value: dict[str, Any],
    *,
    timeout_s: float,
    connect: Connect = connect_tcp,
    hello: Hello | None = None,
    cluster: str = "",
) -> dict[str, Any]:
    """Returns a node's answer to a request; both bodies are JSON.

    If ``cluster`` is given, the request is sent only after the node has named the cluster of that name as its own.

    Waits ``timeout_s`` seconds at most; with ``math.inf`` it waits while the node lives. Raises Unreachable, whose
    ``outcome`` tells if the request may have had an effect, or the error that the node answers with.
    """
    request = encode_json(opcode, value, _ID)
    sent = False

    def greeted(transport: Transport, peer: HelloOk) -> None:
        nonlocal sent
        if not sent:
            check_cluster(cluster, peer, str(address))
            transport.send(request)
            sent = True

    try:
        with trio.move_on_after(timeout_s):
            async with connected(connect, address) as transport:
                transport.send((hello or Hello(name="ask")).encode())
                if not cluster:  # the greeting need not be waited for
                    transport.send(request)
                    sent = True
                return await _answer(transport, opcode, greeted)
    except OSError as error:
        raise Unreachable(f"the connection to {address} broke: {error}", outcome=_outcome(sent)) from error
    except Unreachable as error:
        raise Unreachable(str(error), outcome=_outcome(sent)) from error
    raise Unreachable(f"{address} has not answered within {timeout_s:g} s", outcome=_outcome(sent))


def _outcome(sent: bool) -> str:
    return "unknown" if sent else "not sent"


@asynccontextmanager
async def connected(connect: Connect, address: Address) -> AsyncIterator[Transport]:
    """A connection to ``address`` while the body runs. Raises Unreachable."""
    transport = await connect(address)
    try:
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.run)
            try:
                yield transport
            except Exception as error:  # raised below, outside of the nursery, which would wrap it in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
    finally:
        transport.close()


async def _answer(
    transport: Transport, opcode: Opcode, greeted: Callable[[Transport, HelloOk], None]
) -> dict[str, Any]:
    """Returns the answer on ``transport``. Sends NOOPs meanwhile, and notices a node that is silent."""
    decoder = FrameDecoder()
    interval_s = 3.0  # until the node has told its interval
    silent = 0
    while silent <= 2 * SILENT_INTERVALS_MAX:
        data = None
        with trio.move_on_after(interval_s / 2):
            data = await transport.receive()
        if data is None:
            silent += 1
            transport.send(encode_frame(Opcode.NOOP))
            continue
        if not data:
            break
        silent = 0
        for frame in decoder.receive_data(data):
            if frame.opcode is Opcode.HELLO_OK:
                peer = HelloOk.decode(frame.body)
                interval_s = peer.noop_interval_s
                greeted(transport, peer)
            elif frame.opcode is Opcode.ERROR:
                raise decode_error(frame.body)
            elif frame.opcode is Opcode.RESULT and frame.id == _ID:
                return decode_json(frame.body, "RESULT")
            elif frame.opcode is not Opcode.NOOP:
                raise ProtocolError(f"the answer to {opcode.name} is {frame.opcode.name}")
    raise Unreachable(f"{transport.peer} {'is silent' if silent else 'has closed the connection'}")
