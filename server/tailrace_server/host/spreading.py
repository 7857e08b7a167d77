"""Spreads a look at many things over a time, so that the loop does not stand still for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

# The things of one step. A look at a connection takes 4 µs, and 12 µs if something is sent.
TOGETHER = 64

T = TypeVar("T")


async def spread(things: Sequence[T], seconds: float, look: Callable[[Sequence[T]], None]) -> None:
    """Calls ``look`` with some things after the other, evenly over ``seconds``. Few things have one call, at once.

    A checkpoint between two calls only. Cancelling leaves out the rest.
    """
    begin = trio.current_time()
    for first in range(0, len(things), TOGETHER):
        if first:
            await trio.sleep_until(begin + seconds * first / len(things))
        look(things[first : first + TOGETHER])
