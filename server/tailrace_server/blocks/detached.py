"""A block that keeps no more in memory than itself."""

from __future__ import annotations

from tailrace.block import Block

# A block that came in a chunk so many times larger is copied out of it: it would keep the whole chunk in memory.
KEPT_SHARE_MAX = 1.1


def detached(block: Block) -> Block:
    """``block``, with a body of its own where it is a small part of what was received."""
    body = block.body
    if isinstance(body, memoryview) and memoryview(body.obj).nbytes > KEPT_SHARE_MAX * block.nbytes:
        return Block(block.header, block.head, bytes(body))
    return block
