"""Copies a block out of a much larger buffer that it would keep in memory."""

from __future__ import annotations

from tailrace.block import Block

# A block whose buffer is larger than the block by this factor is copied: it would keep the whole buffer in memory.
KEPT_SHARE_MAX = 1.1


def detached(block: Block) -> Block:
    """Returns ``block``, with a body of its own if it is a small part of the buffer that was received."""
    body = block.body
    if isinstance(body, memoryview) and memoryview(body.obj).nbytes > KEPT_SHARE_MAX * block.nbytes:
        return Block(block.header, block.head, bytes(body))
    return block
