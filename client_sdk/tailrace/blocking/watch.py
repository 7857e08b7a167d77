"""Looks at another node of a set without async, beside a connection that serves; see `tailrace.link.finder`."""

from __future__ import annotations

import contextlib
import socket
import ssl

from tailrace.errors import TailraceError
from tailrace.link.connection import LinkCore
from tailrace.link.finder import LOOK_TIMEOUT_SECONDS
from tailrace.link.watch import Greeting

_RECEIVE_BYTES = 64 * 1024


def look(link: LinkCore, waits: bool, tls: ssl.SSLContext | None = None) -> bool:
    """Greets another node if that is due. Returns whether to leave the present connection.

    Each system call waits for `LOOK_TIMEOUT_SECONDS` at most. ``waits`` tells whether a request has no answer yet.
    """
    address = link.next_look(waits)
    if address is not None:
        with (
            contextlib.suppress(TailraceError, OSError),  # such a node tells nothing about the leader
            socket.create_connection(address, LOOK_TIMEOUT_SECONDS) as plain,
            plain if tls is None else tls.wrap_socket(plain, server_hostname=address.host) as sock,
        ):
            sock.sendall(link.hello.encode())
            greeting, peer = Greeting(), None
            while peer is None:
                peer = greeting.receive_data(sock.recv(_RECEIVE_BYTES))
            link.finder.seen(address, peer)
    return link.is_superseded()
