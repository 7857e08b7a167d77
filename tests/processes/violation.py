"""The error of a promise that was broken."""

from __future__ import annotations


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
