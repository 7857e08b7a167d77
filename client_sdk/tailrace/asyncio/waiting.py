"""Waits under asyncio for an event or a time, and tells the event loops apart."""

from __future__ import annotations

import asyncio


async def wait_within(event: asyncio.Event, seconds: float) -> bool:
    """Waits until ``event`` is set, ``seconds`` at most. Returns whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


def running_loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of the caller. Raises RuntimeError if it runs under another library, such as trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "tailrace.asyncio.connect needs a running event loop of asyncio, and there is none: under trio use "
            "tailrace.connect, and without async tailrace.blocking.connect"
        ) from None


def check_loop(loop: asyncio.AbstractEventLoop | None, kind: str) -> None:
    """Raises RuntimeError if ``loop``, that of an object of this ``kind``, is not the caller's."""
    if loop is running_loop():
        return
    if loop is None:
        raise RuntimeError(f"this {kind} was not entered yet: use it inside of 'async with'")
    raise RuntimeError(f"this {kind} belongs to another event loop: make another one in this loop")
