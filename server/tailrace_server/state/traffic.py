"""The totals of a node since its start, as plain numbers that a scrape reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.model import Level
from tailrace.wire.opcodes import Opcode
from tailrace_server.state.durations import Durations


class WriteTotals:
    """The blocks that writers and sinks have added. Only its own methods change its fields."""

    __slots__ = ("batches", "blocks", "bytes", "mutations")

    def __init__(self) -> None:
        self.blocks = self.mutations = self.bytes = self.batches = 0

    def wrote(self, rows: int, nbytes: int) -> None:
        """Counts a block of ``rows`` mutations and ``nbytes`` on the wire."""
        self.blocks += 1
        self.mutations += rows
        self.bytes += nbytes

    def published(self) -> None:
        """Counts a batch of a sink that was published as a whole."""
        self.batches += 1


class Traffic:
    """Requests, errors and connections of a node. Only its own methods change its fields."""

    def __init__(self) -> None:
        self._requests: dict[Opcode, int] = dict.fromkeys(Opcode, 0)
        self._errors: dict[str, int] = {}
        # From the append of a block to its answer, by level; and of GETs, until their rows were found.
        self.write_durations = {level: Durations() for level in Level}
        self.get_durations = Durations()
        self.connections_opened = self.streams_opened = 0
        # Of connections that have ended; those that are open count for themselves.
        self.ended_sent_blocks = self.ended_sent_bytes = 0

    def request(self, opcode: Opcode) -> None:
        """Counts a frame of a peer."""
        self._requests[opcode] += 1

    def error(self, error: Exception) -> None:
        """Counts an error that a peer was told."""
        name = type(error).__name__
        self._errors[name] = self._errors.get(name, 0) + 1

    def connection_opened(self) -> None:
        """Counts a connection."""
        self.connections_opened += 1

    def stream_opened(self) -> None:
        """Counts a stream."""
        self.streams_opened += 1

    def connection_ended(self, sent_blocks: int, sent_bytes: int) -> None:
        """Keeps the totals of a connection that has ended."""
        self.ended_sent_blocks += sent_blocks
        self.ended_sent_bytes += sent_bytes

    def requests(self) -> Iterator[tuple[str, int]]:
        """Returns the opcodes that have come, with their number."""
        return ((opcode.name, count) for opcode, count in self._requests.items() if count)

    def errors(self) -> Iterator[tuple[str, int]]:
        """Returns the types of errors that were told, with their number."""
        return iter(sorted(self._errors.items()))
