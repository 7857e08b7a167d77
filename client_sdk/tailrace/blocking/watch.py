"""Looks at another node of a set without async, beside a connection that serves; see `tailrace.link.finder`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.blocking.guard import raise_foreign
from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.link.connection import LinkCore
from tailrace.link.finder import LOOK_TIMEOUT_SECONDS
from tailrace.link.watch import Greeting

if TYPE_CHECKING:
    from tailrace.wire.messages import HelloOk

_RECEIVE_BYTES = 64 * 1024


def look(link: LinkCore, waits: bool, tls: ssl.SSLContext | None = None) -> bool:
    """Greets another node if that is due. Returns whether to leave the present connection.

    Each system call waits for `LOOK_TIMEOUT_SECONDS` at most. ``waits`` tells whether a request has waited for long.
    """
    address = link.next_look(waits)
    if address is not None:
        try:
            _greet(link, address, tls)
        except (TailraceError, OSError) as error:  # such a node tells nothing about the leader
            raise_foreign(error)
    return link.is_superseded()


def _greet(link: LinkCore, address: Address, tls: ssl.SSLContext | None) -> None:
    """Tells the finder what the node at ``address`` says of itself. Raises TailraceError, OSError."""
    with (
        socket.create_connection(address, LOOK_TIMEOUT_SECONDS) as plain,
        plain if tls is None else tls.wrap_socket(plain, server_hostname=address.host) as sock,
    ):
        greeting = Greeting()
        if link.finder.tunnel is None:
            sock.sendall(link.hello.encode())
            peer = _greeted(sock, greeting.receive_data)
        else:
            peer = _greeted_by_websocket(sock, address, link.finder.tunnel, link.hello.encode(), greeting)
        link.finder.seen(address, peer)


def _greeted(sock: socket.socket, take: Callable[[bytes], HelloOk | None]) -> HelloOk:
    """Reads until ``take`` has the greeting."""
    peer = None
    while peer is None:
        peer = take(sock.recv(_RECEIVE_BYTES))
    return peer


def _greeted_by_websocket(
    sock: socket.socket, address: Address, tunnel: str, hello: bytes, greeting: Greeting
) -> HelloOk:
    from tailrace.websocket.engine import WebSocketEngine  # its library is an extra

    engine = WebSocketEngine(address, tunnel)
    sock.sendall(b"".join(engine.take()))
    is_said = False

    def take(data: bytes) -> HelloOk | None:
        nonlocal is_said
        if data:
            engine.feed(data)
        else:
            engine.fed_end()
        if engine.is_open and not is_said:
            is_said = True
            engine.send([hello])
        sock.sendall(b"".join(engine.take()))
        found = engine.received()
        return greeting.receive_data(found) if found or engine.is_ended else None

    return _greeted(sock, take)
