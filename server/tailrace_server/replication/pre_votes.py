"""Pre-votes: whether a member would let another one lead, and when a member without a leader asks for that. Pure.

A candidate asks before it raises the term. A member refuses if the first of these rows fits:

| row | because |
|---|---|
| unfit | its disk fails or hangs, so its promise would not come |
| sticks | it leads itself, or has heard the leader lately: the candidate alone has lost it |
| promoting | it is about to lead itself |
| ahead | it has more than the candidate, and stands itself: less would have to be fetched |

A pre-vote binds no member, and is written nowhere. With the pre-votes of a majority the candidate asks for promises. A
promise is asked for by the same stickiness, since the leader may have come back meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# The seconds that a member waits for each member that has more than itself.
_RANK_SECONDS = 0.3
# The length of the random part of the pause; it doubles with each try that failed, up to the number of times.
_SPREAD_SECONDS = 0.1
_SPREAD_TIMES_MAX = 16


class Completeness(NamedTuple):
    """How much a member has on its disk: the term of its newest branch, then the number of mutations."""

    held_term: int
    held: int


class Voter(NamedTuple):
    """The state of a member that is asked for a pre-vote.

    - ``unfit``: the sentence why its disk cannot be counted on; "" if it can.
    - ``sticks``: the sentence that it leads, or has heard the leader lately; "" if neither.
    - ``promoting``: whether it is about to lead.
    - ``stands``: whether it would stand itself soon: it votes, fails over by itself, follows no leader, reads all its
      partitions, and has room on its disk.
    - ``has``: its completeness.
    """

    unfit: str
    sticks: str
    promoting: bool
    stands: bool
    has: Completeness


def why_refused(candidate: Completeness, voter: Voter) -> str:
    """Returns why ``voter`` would not let the candidate lead now; "" if it would."""
    if voter.unfit:
        return voter.unfit
    if voter.sticks:
        return voter.sticks
    if voter.promoting:
        return "it is about to lead"
    if voter.stands and voter.has > candidate:
        return f"it has more: {_told(voter.has)}, and the candidate {_told(candidate)}"
    return ""


def rank_of(own: Completeness, name: str, others: Iterable[tuple[Completeness, str]]) -> int:
    """Returns the number of the other members that should stand before this one, which is called ``name``.

    Those with more come first. Among equals the names decide, so that they do not stand at once.
    """
    return sum(has > own or (has == own and other < name) for has, other in others)


def pause_seconds(rank: int, failures: int, chance: float) -> float:
    """Returns the seconds from the loss of the leader, or from a try that failed, until this member asks.

    Args:
        rank: As ``rank_of`` returns it.
        failures: The number of tries in a row that failed.
        chance: A random number from 0 to 1.
    """
    return rank * _RANK_SECONDS + chance * _SPREAD_SECONDS * min(1 << min(failures, 30), _SPREAD_TIMES_MAX)


def _told(has: Completeness) -> str:
    return f"{has.held} mutations up to term {has.held_term}"
