"""The error of a promise that was broken."""

from __future__ import annotations


class Violation(AssertionError):
    """A feed has broken one of its promises."""


def most_telling(error: BaseException) -> BaseException:
    """Returns a violation that is in ``error``, if there is one: it may have made other tasks fail, too."""
    leaves: list[BaseException] = []
    todo = [error]
    while todo:
        one = todo.pop()
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
        else:
            leaves.append(one)
    return next((one for one in leaves if isinstance(one, Violation)), leaves[0])
