"""Looks at another node of a set without async, beside a connection that serves; see `tailrace.link.finder`."""

from __future__ import annotations

import contextlib
import socket

from tailrace.errors import NotLeader, TailraceError
from tailrace.link.finder import LOOK_TIMEOUT_SECONDS, Finder
from tailrace.link.watch import Greeting
from tailrace.wire.messages import Hello

_RECEIVE_BYTES = 64 * 1024


def look(finder: Finder, hello: Hello, waits: bool) -> NotLeader | None:
    """Greets another node if that is due. Returns the reason to leave the present connection, if there is one.

    Each system call waits for `LOOK_TIMEOUT_SECONDS` at most. ``waits`` tells whether a request has no answer yet.
    """
    address = finder.next_look(waits)
    if address is not None:
        with (
            contextlib.suppress(TailraceError, OSError),  # such a node tells nothing about the leader
            socket.create_connection(address, LOOK_TIMEOUT_SECONDS) as sock,
        ):
            sock.sendall(hello.encode())
            greeting, peer = Greeting(), None
            while peer is None:
                peer = greeting.receive_data(sock.recv(_RECEIVE_BYTES))
            finder.seen(address, peer)
    return finder.superseded()
