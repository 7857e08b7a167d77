"""The memory that blocks take: for a block of one row several times its bytes on the wire.

Block ── header, a tuple of numbers
  ├───── head, 96 bytes
  └───── body: bytes, or a view ──> the buffer that it was cut from, alive as a whole
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.block import HEADER_BYTES, Block

# The objects of a block without the bytes of head and body: the block, the header's tuple and its numbers, the objects
# of head and body, and its place in the tree. Measured with tracemalloc, CPython 3.11, 64 bits.
BLOCK_OBJECT_BYTES = 570
# Of these, the header's tuple and its numbers, which blocks in chunks do not keep. Those of the newest chunk may have
# them for a while (tree.py).
HEADER_OBJECT_BYTES = 410
# Added by a body that is a view: the view, the view that it was cut from, and the object that both share.
VIEW_OBJECT_BYTES = 312


def memory_of(block: Block, before: Block | None = None) -> int:
    """Returns the bytes that ``block`` keeps in memory, without a buffer that it shares with ``before``."""
    body = block.body
    if isinstance(body, bytes):
        return BLOCK_OBJECT_BYTES + HEADER_BYTES + len(body)
    own = BLOCK_OBJECT_BYTES + HEADER_BYTES + VIEW_OBJECT_BYTES
    buffer = body.obj
    if before is not None and isinstance(before.body, memoryview) and before.body.obj is buffer:
        return own
    return own + memoryview(buffer).nbytes


def memory_of_all(blocks: Sequence[Block]) -> int:
    """Returns the bytes that neighbouring blocks keep in memory; a buffer that neighbours share counts once."""
    return sum(memory_of(block, before) for block, before in zip(blocks, (None, *blocks), strict=False))
