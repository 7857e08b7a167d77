"""Requests to a feed of four partitions that are made by hand, and how a connection ends that they break."""

from __future__ import annotations

from tailrace.block import encode_block
from tailrace.model import Level
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.wire.messages import Write

KEY = b"key"
PARTITION = partition_of_hash(key_hash(KEY), 4)


def block_of(*keys, number=1, producer_id=77, partition=PARTITION, value=b"value"):
    """A producer's block."""
    values = [value] * len(keys)
    return encode_block(list(keys), values, partition=partition, producer_id=producer_id, producer_seq=number)


def write(feed_id, block, level=Level.DISK, flags=0, version=None):
    """The body of a WRITE."""
    data = block if isinstance(block, bytes) else block.tobytes()
    return Write.encode_fixed(feed_id, level, flags, version) + data


async def expect_end(connection, kind, match):
    """The connection ends with an error frame that names what was wrong."""
    error = await connection.error()
    assert type(error) is kind
    assert match in str(error)
    assert await connection.is_closed()
