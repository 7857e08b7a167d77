"""Waits in a task for something that answers by a callback."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tailrace.errors import TailraceError

# Called once: with None, or with the error that ends the waiting.
Answer = Callable[[TailraceError | None], None]
# Ends a waiting: the answer is not called after that.
Cancel = Callable[[], None]


async def answered(ask: Callable[[Answer], Cancel | None], end_turn: Callable[[], None]) -> None:
    """Calls ``ask`` with an answer, then ``end_turn``, and returns once the answer is called. Raises its error.

    Cancelling ends the waiting by the `Cancel` that ``ask`` returns, if it returns one.
    """
    done = trio.Event()
    errors: list[TailraceError] = []

    def answer(error: TailraceError | None) -> None:
        if error is not None:
            errors.append(error)
        done.set()

    cancel = ask(answer)
    end_turn()
    try:
        await done.wait()
    finally:
        if cancel is not None:
            cancel()
    if errors:
        raise errors[0].with_traceback(None)
