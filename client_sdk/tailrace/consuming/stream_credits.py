"""The bytes of one feed's blocks that a replica has handled, and their credit to the connection and its streams."""

from __future__ import annotations

from typing import Any

from tailrace.consuming.replica_connection import ReplicaConnection
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import encode_number

# The handled bytes of a feed that are credited to its streams at once, though more of its blocks wait.
STREAMS_CREDIT_BYTES_MAX = 256 * 1024


class StreamCredits:
    """The handled bytes that the node was not told of by a CREDIT of their stream.

    ``connection`` counts all handled bytes, by which it credits its window.
    """

    def __init__(self, connection: ReplicaConnection[Any]) -> None:
        self._connection = connection
        self._by_stream: dict[int, int] = {}
        self.uncredited_bytes = 0  # Invariant: the sum of ``_by_stream``

    def consumed(self, stream_id: int, nbytes: int) -> None:
        """Notes the bytes of a stream that were handled."""
        self._connection.consumed(nbytes)
        if not self._connection.credits_streams:
            return
        self._by_stream[stream_id] = self._by_stream.get(stream_id, 0) + nbytes
        self.uncredited_bytes += nbytes
        if self.uncredited_bytes >= STREAMS_CREDIT_BYTES_MAX:
            self.send()

    def send(self) -> None:
        """Tells the node that this feed has handled its blocks, so that it gets its share of the window again."""
        for stream_id, nbytes in self._by_stream.items():
            self._connection.send(encode_number(Opcode.CREDIT, nbytes, stream_id))
        self.forget()

    def forget(self) -> None:
        """Credits no more of the bytes so far to their streams, which have ended."""
        self._by_stream.clear()
        self.uncredited_bytes = 0
