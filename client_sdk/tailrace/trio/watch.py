"""Watches the other nodes of a set under trio, beside a connection that serves; see `tailrace.link.finder`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import trio

from tailrace.errors import NotLeader, TailraceError
from tailrace.link.address import Address
from tailrace.link.finder import LOOK_TICK_SECONDS, LOOK_TIMEOUT_SECONDS, Finder
from tailrace.link.watch import Greeting
from tailrace.trio.transport import Connect
from tailrace.wire.messages import Hello


async def keep_looking(
    finder: Finder, hello: Hello, connect: Connect, waits: Callable[[], bool], leave: Callable[[NotLeader], None]
) -> None:
    """Greets other nodes when ``finder`` asks for it, and calls ``leave`` when one of them is a later leader.

    Runs for ever if there are other nodes. ``waits`` tells whether a request has no answer yet.
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
        # A node that does not answer tells nothing about the leader.
        with contextlib.suppress(TailraceError, OSError), trio.move_on_after(LOOK_TIMEOUT_SECONDS):
            transport = await connect(address)
            transport.send(hello.encode())
            greeting, peer = Greeting(), None
            while peer is None:
                peer = greeting.receive_data(await transport.receive())
            finder.seen(address, peer)
    finally:
        if transport is not None:
            transport.close()
