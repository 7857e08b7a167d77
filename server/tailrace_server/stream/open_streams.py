"""The open streams of a node, as the layers below the connections see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tailrace.model import EndReason
from tailrace_server.stream.partition_stream import PartitionStream


class OpenStreams(Protocol):
    """The streams of all connections, and what waits to be sent to their peers."""

    def end_streams(self, which: Callable[[PartitionStream], bool], reason: EndReason, message: str) -> None:
        """Ends every stream for which ``which`` is true; ``flush`` sends the end."""

    def end_sessions(self, message: str) -> None:
        """Ends the request connections of clients, which then connect anew."""

    def turn_ended(self, asker: object = None) -> None:
        """Commits what ``asker`` wrote, now or soon, and sends the news; ``asker`` has been handled."""

    def flush(self) -> None:
        """Sends the news to each connection that has any."""
