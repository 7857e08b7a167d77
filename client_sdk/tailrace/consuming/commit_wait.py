"""The wait of a task, or of a thread, for a commit of a named consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.errors import TailraceError


class CommitWait:
    """One task's wait for a commit. ``wake`` is called when it is over."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.is_over = False
        self._wake = wake
        self._error: TailraceError | None = None

    def end(self, error: TailraceError | None) -> None:
        """Ends the wait; the first result counts."""
        if not self.is_over:
            self.is_over, self._error = True, error
            self._wake()

    def result(self) -> None:
        """Returns if the positions are stored. Raises why they are not."""
        if self._error is not None:
            raise self._error
