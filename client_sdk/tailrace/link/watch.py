"""A look at the other nodes of a set, beside a connection that serves: is there a later leader? See `finding`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from tailrace.errors import ProtocolError, TailraceError, Unreachable
from tailrace.link.finder import LOOK_TICK_SECONDS, LOOK_TIMEOUT_SECONDS
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import PROTOCOL_VERSION, Hello, HelloOk, decode_error
from tailrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from tailrace.errors import NotLeader
    from tailrace.link.address import Address
    from tailrace.link.finder import Finder
    from tailrace.trio.transport import Connect

_RECEIVE_BYTES = 64 * 1024


async def keep_looking(
    finder: Finder, hello: Hello, connect: Connect, waits: Callable[[], bool], leave: Callable[[NotLeader], None]
) -> None:
    """Says hello to others when ``finder`` wants it, and calls ``leave`` where the present leader is none any more.

    For ever, where there are others at all. ``waits``: something has no answer yet.
    """
    while finder.looks:
        address = finder.next_look(waits())
        if address is None:
            await trio.sleep(LOOK_TICK_SECONDS)
        else:
            await _look(finder, hello, connect, address)
        error = finder.superseded()
        if error is not None:
            leave(error)


async def _look(finder: Finder, hello: Hello, connect: Connect, address: Address) -> None:
    transport = None
    try:
        # Without an answer it says nothing of who leads.
        with contextlib.suppress(TailraceError, OSError), trio.move_on_after(LOOK_TIMEOUT_SECONDS):
            transport = await connect(address)
            transport.send(hello.encode())
            decoder, peer = FrameDecoder(), None
            while peer is None:
                peer = _greeting(decoder, await transport.receive())
            finder.seen(address, peer)
    finally:
        if transport is not None:
            transport.close()


def look(finder: Finder, hello: Hello, waits: bool) -> NotLeader | None:
    """As `keep_looking`, once and without async: what to leave the present connection for, if anything.

    Waits for `LOOK_TIMEOUT_SECONDS` at most for each of the system's steps, where a look is due.
    """
    address = finder.next_look(waits)
    if address is not None:
        with (
            contextlib.suppress(TailraceError, OSError),  # it says nothing of who leads
            socket.create_connection(address, LOOK_TIMEOUT_SECONDS) as sock,
        ):
            sock.sendall(hello.encode())
            decoder, peer = FrameDecoder(), None
            while peer is None:
                peer = _greeting(decoder, sock.recv(_RECEIVE_BYTES))
            finder.seen(address, peer)
    return finder.superseded()


def _greeting(decoder: FrameDecoder, data: bytes) -> HelloOk | None:
    """What a node says to a HELLO, once all of it is there. Raises what it says instead."""
    if not data:
        raise Unreachable("the node has closed the connection")
    for frame in decoder.receive_data(data):
        if frame.opcode is Opcode.ERROR:
            raise decode_error(frame.body)
        if frame.opcode is Opcode.HELLO_OK:
            peer = HelloOk.decode(frame.body)
            if peer.version != PROTOCOL_VERSION:
                raise ProtocolError(f"the node speaks version {peer.version} of the protocol")
            return peer
    return None
