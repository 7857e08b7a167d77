"""A connection, as far as consumers with a name, and groups, use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tailrace.trio.transport import Transport


class Sending(Protocol):
    """The answers of a connection."""

    def add(self, data: bytes) -> None:
        """Queues a frame."""


class Joining(Protocol):
    """A connection, as this file sees it."""

    name: str
    is_closing: bool
    transport: Transport

    @property
    def answers(self) -> Sending:
        """Returns the answers that it owes its peer."""
