"""The errors of a journal."""

from __future__ import annotations

from tailrace.errors import NotDurable, TailraceError


class JournalDamaged(TailraceError):
    """The journal has lost something that was durable; the node does not start, and nothing has been changed.

    ``file`` is the path, ``offset`` the begin of the damage in it, in bytes.
    """

    def __init__(self, file: str, offset: int, why: str) -> None:
        super().__init__(f"the journal is damaged: {file} at offset {offset}: {why}")
        self.file = file
        self.offset = offset


class JournalFailed(NotDurable):
    """A write or an fsync of the journal failed: nothing is acknowledged any more until the node is started again."""


class DirectoryInUse(TailraceError):
    """Another process has the data directory."""
