"""Tells what a command is doing with the files of a directory."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Is told how far a long reading has come."""

    def expect(self, nbytes: int) -> None:
        """So many bytes more will be read."""

    def begin(self, path: str) -> None:
        """Now this file is read."""

    def read(self, nbytes: int) -> None:
        """So many bytes more were read."""


class Unwatched:
    """A watcher that does nothing."""

    def expect(self, nbytes: int) -> None:
        """Nothing."""

    def begin(self, path: str) -> None:
        """Nothing."""

    def read(self, nbytes: int) -> None:
        """Nothing."""
