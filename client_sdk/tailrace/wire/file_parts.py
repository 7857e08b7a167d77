"""The parts in which files go over the wire: of segments, and of sealed stages. Pure."""

from __future__ import annotations

from tailrace.errors import ProtocolError

# The most bytes of a part: other answers of the connection wait for one part at most.
PART_BYTES_MAX = 1024 * 1024


def check_part(nbytes: int, what: str) -> None:
    """Raises ProtocolError unless a part may have ``nbytes`` bytes. ``what``: the message that tells the number."""
    if not 0 < nbytes <= PART_BYTES_MAX:
        raise ProtocolError(f"{what}: a part of {nbytes} bytes; a part has 1 to {PART_BYTES_MAX}")
