"""What a consumer must store to go on where it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.position import Positions
    from tailrace.ring import RingChange


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a consumer stands in every partition that it reads.

    It is valid only together with what was applied up to it: an index stores both in one transaction. A partition
    that is not in ``positions`` has not been begun.

    ``rings`` has how the rings of recent keys have changed (`tailrace.ring`), for those partitions where they have; as
    `Index.open` gives it, the whole of each. An index that leaves it out begins a partition anew where others read a
    few keys again.
    """

    positions: Positions
    rings: Mapping[int, RingChange] = field(default_factory=dict)
