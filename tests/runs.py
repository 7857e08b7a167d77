"""What runs against real processes and in the simulator have in common: a violation, rows, and how long to go on."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class Violation(AssertionError):
    """A feed is not what it promised to be."""


def most_telling(error: BaseException) -> BaseException:
    """A violation, where there is one in ``error``: what it has ended may have failed too."""
    leaves: list[BaseException] = []
    todo = [error]
    while todo:
        one = todo.pop()
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
        else:
            leaves.append(one)
    return next((one for one in leaves if isinstance(one, Violation)), leaves[0])


class Row(NamedTuple):
    """A row of a partition's history; its seq is its place, from 1. ``value`` is None where the key was deleted."""

    key: bytes
    value: bytes | None
    timestamp: int


class Answers:
    """How many answers writers have got, by which everything in a run waits: the machine's speed does not matter."""

    def __init__(self) -> None:
        self.answers = 0
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._tickets = itertools.count()

    def answered(self) -> None:
        """A writer has got an answer."""
        self.answers += 1
        while self._waiting and self._waiting[0][0] <= self.answers:
            heapq.heappop(self._waiting)[2].set()

    async def more_answers(self, count: int) -> None:
        """Waits for so many more."""
        event = trio.Event()
        heapq.heappush(self._waiting, (self.answers + count, next(self._tickets), event))
        await event.wait()


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
