"""Bugs of stages that are copied to a majority of a set."""

from __future__ import annotations

from unittest import mock

from tailrace_server.publishing import stage_copy
from tailrace_server.publishing.stage_copy import StageCopy
from tailrace_server.publishing.stage_spreader import StageSpreader

from .bug import Bug

_seal = StageCopy.seal


async def _spread_to_nobody(spreader, leaderships, feed_id, id):
    """Answers a seal at quorum as one at disk."""


async def _fetch_nothing(spreader, leaderships, feed_id, ids, is_over):
    """Publishes from the stages that are here."""
    return True


def _seal_without_sync(copy, now):
    """Gives a copy the name of a stage before its content is durable."""
    with mock.patch.object(copy._file, "sync"):
        return _seal(copy, now)


def _take_any_blocks(disk, path):
    """Takes the blocks of a copy as they come."""


BUGS = {
    "a seal at quorum that waits for nobody": Bug(
        [(StageSpreader, "spread", _spread_to_nobody)], {"leader_lost_after_a_seal": 0}
    ),
    "a leader that gets no stages of the leader before": Bug(
        [(StageSpreader, "fetch", _fetch_nothing)], {"leader_lost_after_a_seal": 0}
    ),
    "a copied stage that is not durable": Bug([(StageCopy, "seal", _seal_without_sync)], {"power_cut_after_a_seal": 0}),
    "a copied stage whose blocks are not checked": Bug(
        [(stage_copy, "require_whole", _take_any_blocks)], {"flipped_stage": 0}
    ),
}
