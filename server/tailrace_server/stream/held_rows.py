"""The flushed rows that the streams of one connection hold in memory, because a slow consumer has not taken them. Pure.

They are in segments too, so a stream can let go of its blocks, and go on with segments.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace_server.stream.stream_slot import StreamSlot

# The flushed blocks that the streams of a connection may hold together. Above this they all continue with segments.
HELD_BYTES_MAX = 8 * 1024 * 1024


class HeldRows:
    """Bounds the flushed bytes of one connection; ``slots`` are those of its open streams."""

    def __init__(self, slots: Mapping[int, StreamSlot]) -> None:
        self._slots = slots
        # Invariant: the sum of the slots' flushed_bytes.
        self._bytes = 0

    def count(self, slot: StreamSlot) -> None:
        """Counts what a stream holds now."""
        self._bytes += slot.count_flushed()

    def forget(self, slot: StreamSlot) -> None:
        """Drops a stream that is about to end."""
        self._bytes -= slot.flushed_bytes

    def to_let_go(self, slot: StreamSlot) -> list[StreamSlot]:
        """Returns the streams that have to let go of their rows, after ``slot`` was counted: it, or all that hold any.

        The others may have sent some since they were counted, and are counted again before all have to.
        """
        if slot.stream.holds_flushed:
            return [slot]
        if self._bytes <= HELD_BYTES_MAX:
            return []
        holders = [holder for holder in self._slots.values() if holder.flushed_bytes]
        for holder in holders:
            self.count(holder)
        return [holder for holder in holders if holder.flushed_bytes] if self._bytes > HELD_BYTES_MAX else []
