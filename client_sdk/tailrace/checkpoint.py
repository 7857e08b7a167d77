"""What a consumer must store to go on where it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.position import Positions


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a consumer stands in every partition that it reads.

    It is valid only together with what was applied up to it: an index stores both in one transaction. A partition
    that is not in ``positions`` has not been begun.
    """

    positions: Positions
