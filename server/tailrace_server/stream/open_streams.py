"""The open streams of a node, as the layers below the connections see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tailrace.errors import TailraceError
from tailrace.model import EndReason
from tailrace_server.stream.partition_stream import PartitionStream


class OpenStreams(Protocol):
    """The streams of all connections, and what waits to be sent to their peers."""

    def end_streams(
        self,
        which: Callable[[PartitionStream], bool],
        reason: EndReason,
        message: str,
        *,
        feed_id: bytes | None = None,
    ) -> None:
        """Ends every stream for which ``which`` is true; ``flush`` sends the end.

        ``feed_id``: looks at the streams of this feed only, which costs nothing for those of other feeds.
        """

    def end_replicas(self, leadership: Any, error: TailraceError) -> None:
        """Ends the connections of the replicas that follow by ``leadership``, whatever the number of their streams."""

    def end_sessions(self, message: str) -> None:
        """Ends the request connections of clients, which then connect anew."""

    def turn_ended(self, asker: object = None) -> None:
        """Commits what ``asker`` wrote, now or soon, and sends the news; ``asker`` has been handled."""

    def has_replica_news(self, sender: Any) -> None:
        """Notes that ``sender`` has something for a replica. It leaves before the next fsync, or in the next pass."""

    def has_later_replica_news(self, sender: Any) -> None:
        """Notes that ``sender`` has something for a replica. It leaves with other news to it, or soon."""

    def has_acknowledgements(self, link: Any) -> None:
        """Notes that ``link``, to the node that is followed, has something to send, at the latest in the next pass."""

    def flush(self) -> None:
        """Sends the news to each connection that has any."""
