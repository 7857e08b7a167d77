"""The states of a partition in a group, and the table of the events that lead from one to the next. Pure.

      GRANT              CONFIRMED            REVOKE
FREE ───────> GRANTING ────────────> OWNED ──────────> REVOKING
 ^               │                     │                  │
 └───────────────┴─────────────────────┴──────────────────┘
        RELEASED by the member, or EXPIRED with its lease
"""

from __future__ import annotations

import enum


class Ownership(enum.Enum):
    """What the leader knows of a partition's owner."""

    FREE = "free"
    """No member may handle it."""
    GRANTING = "granting"
    """The row with its next owner is written, and a majority may not have it yet: the member does not know of it."""
    OWNED = "owned"
    REVOKING = "revoking"
    """Its owner is to finish, to commit and to release it."""


class OwnershipEvent(enum.Enum):
    """What happens to a partition."""

    GRANT = "grant"
    CONFIRMED = "confirmed"
    """The row of the owner cannot be lost any more."""
    REVOKE = "revoke"
    RELEASED = "released"
    EXPIRED = "expired"
    """The lease of its owner has run out."""


_TABLE: dict[tuple[Ownership, OwnershipEvent], Ownership] = {
    (Ownership.FREE, OwnershipEvent.GRANT): Ownership.GRANTING,
    (Ownership.GRANTING, OwnershipEvent.CONFIRMED): Ownership.OWNED,
    (Ownership.OWNED, OwnershipEvent.REVOKE): Ownership.REVOKING,
    **{
        (state, event): Ownership.FREE
        for state in (Ownership.GRANTING, Ownership.OWNED, Ownership.REVOKING)
        for event in (OwnershipEvent.RELEASED, OwnershipEvent.EXPIRED)
    },
}


def transition(state: Ownership, event: OwnershipEvent) -> Ownership:
    """Returns the state that follows ``state`` after ``event``. Raises RuntimeError if it has no place there."""
    following = _TABLE.get((state, event))
    if following is None:
        raise RuntimeError(f"{event.value} of a partition that is {state.value}")
    return following
