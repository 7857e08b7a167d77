"""Carries out the plans of a fetch with async: the part that the shells for trio and asyncio share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from tailrace.copies.fetch import Exchange, FetchPlan, FetchStep, OnDisk
from tailrace.errors import TailraceError
from tailrace.requests.plan import Continue, FetchParts, RequestStep

_T = TypeVar("_T")

# Sends the request of a step, and returns its answer.
Ask: TypeAlias = Callable[[RequestStep], Awaitable[Any]]


class DiskWorker(Protocol):
    """A thread for the disk."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    async def run(self, function: Callable[..., _T], *args: Any) -> _T: ...
    def post(self, function: Callable[..., None], *args: Any) -> None: ...


@asynccontextmanager
async def working(worker: DiskWorker) -> AsyncIterator[DiskWorker]:
    """Runs ``worker`` beside the body."""
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


async def run(ask: Ask, worker: DiskWorker, plan: FetchPlan[_T]) -> _T:
    """Carries out a plan and returns its result."""
    try:
        step = next(plan)
        while True:
            try:
                answer = await _take(ask, worker, step)
            except (TailraceError, OSError) as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        plan.close()


async def _take(ask: Ask, worker: DiskWorker, step: FetchStep) -> Any:
    """Carries out a step and returns its result."""
    if isinstance(step, OnDisk):
        return await worker.run(step.function)
    if isinstance(step, Exchange):
        fetch = FetchParts(step.checkpoint_id, step.parts, partial(worker.post, step.store), step.buffers)
        try:
            return await ask(fetch)
        finally:
            await worker.run(_do_nothing)  # all that was posted is done then
    if isinstance(step, Continue):
        return None  # each request has a time of its own
    return await ask(step)


def _do_nothing() -> None:
    pass
