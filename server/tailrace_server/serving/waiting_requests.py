"""The requests of one connection that wait in tasks of their own. Pure."""

from __future__ import annotations

from tailrace.errors import Overloaded
from tailrace.wire.stream_messages import StreamRequest


class WaitingRequests:
    """Bounds the requests that wait: for the by-key index, the disk, other nodes, or the place of a time."""

    def __init__(self, count_max: int) -> None:
        # Invariant: 0 <= count <= count_max.
        self.count = 0
        self._count_max = count_max

    def begin(self) -> None:
        """Counts a request until `end`. Raises Overloaded if too many wait."""
        if self.count >= self._count_max:
            raise Overloaded(f"{self.count} requests of this connection are waiting; wait for answers")
        self.count += 1

    def end(self) -> None:
        """Ends the wait that `begin` has counted."""
        self.count -= 1


class PendingStreams:
    """The requests for streams that are not answered yet, by stream id."""

    def __init__(self) -> None:
        self._requests: dict[int, StreamRequest] = {}

    def __contains__(self, id: int) -> bool:
        return id in self._requests

    def add(self, id: int, request: StreamRequest) -> None:
        """Adds a request, whose answer has to wait."""
        self._requests[id] = request

    def has(self, id: int, request: StreamRequest) -> bool:
        """Returns False if the client has closed the stream; another request may have its id by now."""
        return self._requests.get(id) is request

    def pop(self, id: int) -> StreamRequest | None:
        """Removes the request of this id and returns it; None if there is none."""
        return self._requests.pop(id, None)
