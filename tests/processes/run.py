"""Runs a scenario in trio, and prints what there was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from .violation import most_telling

if TYPE_CHECKING:
    from collections.abc import Callable


class _Nodes(Protocol):
    def log_tail(self) -> str: ...


class Runnable(Protocol):
    """``figures``: what there was, for people."""

    nodes: _Nodes

    async def __call__(self) -> None: ...

    def figures(self) -> str: ...


R = TypeVar("R", bound=Runnable)


def run_to_the_end(make: Callable[[], R], seed: int) -> R:
    """Makes a run inside of trio, runs it, and prints what there was. Raises the violation, where there is one."""
    print(f"seed {seed}")
    made: list[R] = []

    async def main() -> None:
        made.append(make())
        await made[0]()

    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        raise most_telling(group) from group
    finally:
        for one in made:
            print(one.figures())
            print(one.nodes.log_tail())
    return made[0]
