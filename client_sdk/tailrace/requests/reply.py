"""The answer to one request, for the caller that waits for it. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from tailrace.errors import TailraceError

_T = TypeVar("_T")


class Reply(Generic[_T]):
    """Holds the answer to a request: a result or an error. A session calls ``done`` once."""

    __slots__ = ("error", "finished", "result")

    def __init__(self) -> None:
        self.finished = False
        self.result: _T | None = None
        self.error: TailraceError | None = None

    def done(self, result: _T | None, error: TailraceError | None) -> None:
        """Takes the answer."""
        self.finished, self.result, self.error = True, result, error

    def get(self) -> _T:
        """Returns the result, or raises the error. Call it only when ``finished``."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result
