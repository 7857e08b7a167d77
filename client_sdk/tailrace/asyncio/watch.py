"""Watches the other nodes of a set under asyncio, beside a connection that serves; see `tailrace.link.finder`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from tailrace.asyncio.transport import Connect, closing
from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.link.connection import LinkCore
from tailrace.link.finder import LOOK_TICK_SECONDS, LOOK_TIMEOUT_SECONDS
from tailrace.link.watch import Greeting
from tailrace.wire.messages import HelloOk


async def _next_tick() -> None:
    await asyncio.sleep(LOOK_TICK_SECONDS)


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
            with contextlib.suppress(TailraceError, OSError):  # a node without an answer tells nothing of the leader
                link.finder.seen(address, await _greet(link, connect, address))
        if link.is_superseded():
            leave()


async def _greet(link: LinkCore, connect: Connect, address: Address) -> HelloOk:
    """Returns a node's answer to a greeting. Raises TimeoutError, which is an OSError, TailraceError, or OSError."""
    async with asyncio.timeout(LOOK_TIMEOUT_SECONDS):
        transport = await connect(address)
        async with closing(transport):
            transport.send(link.hello.encode())
            greeting = Greeting()
            while (peer := greeting.receive_data(await transport.receive())) is None:
                pass
            return peer
