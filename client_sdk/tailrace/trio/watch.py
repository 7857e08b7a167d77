"""Watches the other nodes of a set under trio, beside a connection that serves; see `tailrace.link.finder`."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import trio

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.link.connection import LinkCore
from tailrace.link.finder import LOOK_TICK_SECONDS, LOOK_TIMEOUT_SECONDS
from tailrace.trio.transport import Connect


async def _next_tick() -> None:
    await trio.sleep(LOOK_TICK_SECONDS)


async def keep_looking(
    link: LinkCore, connect: Connect, leave: Callable[[], None], rest: Callable[[], Awaitable[None]] = _next_tick
) -> None:
    """Greets other nodes when ``link`` asks for it, and calls ``leave`` when one of them is a later leader.

    Runs for ever if there are other nodes. ``leave`` ends the present connection. ``rest`` returns when the next look
    may be due.
    """
    for address in link.looks():
        if address is None:
            await rest()
        else:
            await _look(link, connect, address)
        if link.is_superseded():
            leave()


async def _look(link: LinkCore, connect: Connect, address: Address) -> None:
    from tailrace.link.watch import Greeting  # a client of one node never looks

    transport = None
    try:
        # A node that does not answer tells nothing about the leader.
        with contextlib.suppress(TailraceError, OSError), trio.move_on_after(LOOK_TIMEOUT_SECONDS):
            transport = await connect(address)
            transport.send(link.hello.encode())
            greeting, peer = Greeting(), None
            while peer is None:
                peer = greeting.receive_data(await transport.receive())
            link.finder.seen(address, peer)
    finally:
        if transport is not None:
            transport.close()
