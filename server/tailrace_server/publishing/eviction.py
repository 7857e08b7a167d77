"""Which stages give way where there is no room for others. Pure.

A job that fails and is started again, over and over, leaves the stages of each try behind: nobody will publish them,
and nobody says so. They would keep every other job from staging anything until they are a day old. So once a stage was
refused for lack of room, those that nothing was heard of for longest go, down to a part of the bounds. What a job that
is well still needs is rarely so old; where it is, its batch is staged anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# None gives way before: far longer than a sink tries again what fails, and than most batches take to be published.
AGE_S_MIN = 600.0
# How much of each bound may be taken when some have given way.
_KEPT = 0.75


class StageUse(NamedTuple):
    """A stage: when something was last heard of it (monotonic seconds), and whether it is still being written."""

    id: bytes
    heard_at: float
    nbytes: int
    is_open: bool


class StageBounds(NamedTuple):
    """Of one node: how many stages, how many of them unsealed, and their bytes."""

    stages: int
    open: int
    nbytes: int


def stages_to_evict(held: Iterable[StageUse], bounds: StageBounds, now: float) -> list[bytes]:
    """Their ids, the ones of which nothing was heard for longest first."""
    by_age = sorted(held, key=lambda stage: stage.heard_at)
    count, count_open = len(by_age), sum(stage.is_open for stage in by_age)
    nbytes = sum(stage.nbytes for stage in by_age)
    found = []
    for stage in by_age:
        if now - stage.heard_at < AGE_S_MIN:
            break
        too_many = count > _KEPT * bounds.stages or (stage.is_open and count_open > _KEPT * bounds.open)
        if too_many or nbytes > _KEPT * bounds.nbytes:
            found.append(stage.id)
            count -= 1
            count_open -= stage.is_open
            nbytes -= stage.nbytes
    return found
