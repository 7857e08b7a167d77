"""The part of some buffers that one call of an engine takes: TLS and WebSocket copy what they send."""

from __future__ import annotations

from collections.abc import Sequence

# The bytes that are encrypted, or put into messages, at a time. The rest waits until the system has taken them.
SLICE_BYTES = 256 * 1024


def first_slice(buffers: Sequence[memoryview]) -> tuple[list[memoryview], int]:
    """Returns the first bytes of ``buffers``, SLICE_BYTES at most, as pieces without a copy, and their number."""
    pieces: list[memoryview] = []
    room = SLICE_BYTES
    for buffer in buffers:
        pieces.append(buffer[:room])
        room -= len(pieces[-1])
        if not room:
            break
    return pieces, SLICE_BYTES - room
