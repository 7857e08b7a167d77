"""Chooses the stages that are removed for lack of room. Pure.

A job that fails and restarts again and again leaves the stages of each try behind, and no one publishes them. Until
they expire, after a day, they would keep all other jobs from staging. So once a stage was refused for lack of room, the
stages that were not used for longest are removed, down to a part of the bounds. A healthy job rarely needs a stage of
that age; if it does, it stages the batch again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# A younger stage stays: this is far longer than a sink retries, and than most batches take to be published.
AGE_S_MIN = 600.0
# The part of each bound that may be in use afterwards.
_KEPT = 0.75


class StageUse(NamedTuple):
    """A stage: when it was last used (monotonic seconds), its bytes, and whether it is still being written."""

    id: bytes
    heard_at: float
    nbytes: int
    is_open: bool


class StageBounds(NamedTuple):
    """The bounds of one node: stages, unsealed stages among them, and the bytes of all."""

    stages: int
    open: int
    nbytes: int


def stages_to_evict(held: Iterable[StageUse], bounds: StageBounds, now: float) -> list[bytes]:
    """Returns the ids of the stages to remove, least recently used first."""
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
