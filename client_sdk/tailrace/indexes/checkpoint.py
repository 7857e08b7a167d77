"""The checkpoint: the state that a consumer stores to resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.consuming.ring import RingChange
    from tailrace.model.position import Positions


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state that a consumer stores to resume.

    A checkpoint is valid only together with everything that was applied up to it. An index stores both in one
    transaction.

    Attributes:
        positions: The position of each partition. A partition that is missing has not been begun.
        rings: The changes of the rings of recent keys, by partition. `Index.open` returns the whole ring of each. An
            index that stores no rings reads a partition again from the beginning after a rollback.
    """

    positions: Positions
    rings: Mapping[int, RingChange] = field(default_factory=dict)


def require_prefix(index: object, held: bytes, key_prefix: bytes) -> None:
    """Raises ValueError if an index that was filled with the prefix ``held`` is followed with another one."""
    if held != key_prefix:
        raise ValueError(
            f"the index {index} was filled with key_prefix={held!r}, and is followed with {key_prefix!r}: follow it as "
            "before, or take a new index"
        )
