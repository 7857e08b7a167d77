"""The headers of many blocks as columns: what they say together costs one call, not one a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tailrace.block import HEADER_BYTES, Block

# docs/formats/block.md, the header.
HEAD_TYPE = np.dtype(
    [
        ("magic", "S4"),
        ("version", "<u2"),
        ("flags", "<u2"),
        ("rows", "<u4"),
        ("partition", "<u4"),
        ("first_seq", "<u8"),
        ("last_seq", "<u8"),
        ("timestamp", "<u8"),
        ("producer_id", "<u8"),
        ("producer_seq", "<u4"),
        ("stored_bytes", "<u4"),
        ("raw_bytes", "<u4"),
        ("reserved", "<u4"),
        ("least_hash", "<u8"),
        ("greatest_hash", "<u8"),
        ("body_sum", "<u8"),
        ("head_sum", "<u8"),
    ]
)
assert HEAD_TYPE.itemsize == HEADER_BYTES

# Records with the fields of a header.
Heads = npt.NDArray[Any]


def heads_of(blocks: Sequence[Block]) -> Heads:
    """A record a block, in their order, with a header's fields: ``heads["rows"]`` are the rows of each. Not checked."""
    return np.frombuffer(b"".join([block.head for block in blocks]), HEAD_TYPE)
