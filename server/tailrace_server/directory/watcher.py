"""Watches how far a command has come with the files of a directory."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Receives the progress of a command that reads many files."""

    def expect(self, nbytes: int) -> None:
        """Adds bytes that will be read."""

    def begin(self, path: str) -> None:
        """Notes that a file is being read."""

    def read(self, nbytes: int) -> None:
        """Adds bytes that were read."""


class Unwatched:
    """A watcher that does nothing."""

    def expect(self, nbytes: int) -> None:
        """Does nothing."""

    def begin(self, path: str) -> None:
        """Does nothing."""

    def read(self, nbytes: int) -> None:
        """Does nothing."""
