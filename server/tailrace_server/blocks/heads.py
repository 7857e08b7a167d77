"""The headers of many blocks as columns, so that a sum over them costs one call for all."""

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
    """Returns a record for each block, in order, with the header's fields as columns. Nothing is checked."""
    return np.frombuffer(b"".join([block.head for block in blocks]), HEAD_TYPE)
