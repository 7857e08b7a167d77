"""What a look-up has found, as the client reads it in the GOT."""

from tailrace.wire.frames import FRAME_HEADER_BYTES
from tailrace.wire.messages import Got


def items_of(lookup):
    """The items of the keys that are answered, in their order; None for a key without a row. All have the key b""."""
    if not lookup.count:
        return []
    data = lookup.rows.encode(lookup.count, 1)
    return Got.decode(memoryview(data)[FRAME_HEADER_BYTES:], [b""] * lookup.count)
