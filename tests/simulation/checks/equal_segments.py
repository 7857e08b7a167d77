"""Checks that all nodes have the same segments of a feed in mode ``segment``, once its leader has compacted all of it.

Until then nodes may have the same rows in other segments, for example after a merge of a pushed segment.
"""

from __future__ import annotations

from unittest import mock

import trio

from tailrace_server.compaction.policy import CompactionPlan, Reason
from tailrace_server.compaction.task import INPUTS_MAX
from tailrace_server.upkeep import compactor


def choose_all(entries, *, stable_seq, **_):
    """Chooses all stable segments for a compaction, or as many as it may have, in place of the policy's choice."""
    stable = [entry for entry in entries if entry.last_seq <= stable_seq][:INPUTS_MAX]
    if len(stable) < 2:
        return None
    nbytes, rows = sum(entry.nbytes for entry in stable), sum(entry.rows for entry in stable)
    return CompactionPlan(0, len(stable) - 1, True, Reason.SHARE, nbytes, rows)


async def equal_segments(world):
    """Writes a row to each partition, so that there is something to compact, and waits until all have one segment each.

    Does nothing if the feed is in mode ``stream``. The caller bounds the time.
    """
    if not _feed(world, world.machines[0]).by_segments:
        return
    with mock.patch.object(compactor, "choose", choose_all):
        async with world.connect_operator("compactor") as client:
            feed, missing, number = client.feed(world.feed_name), set(range(world.plan.partitions)), 0
            while missing:
                key = b"last %d" % number
                if world.partition_of(key) in missing:
                    missing.remove(world.partition_of(key))
                    await feed.put(key, b"last")
                number += 1
        while why_other_segments(world):  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.1)
    world.report.operation("equal segments")


def why_other_segments(world):
    """Returns how the segments of the nodes differ; "": each partition has the same one on all nodes."""
    chains = {}
    for machine in world.machines:
        if not machine.is_up:
            return f"{machine.name} is down"
        partitions = _feed(world, machine).partitions
        chains[machine.name] = [
            [segment.identity.segment_id.hex()[:8] for segment in partition.chain.segments] for partition in partitions
        ]
        unflushed = [partition.id for partition in partitions if partition.tree.block_count]
        if unflushed:
            return f"{machine.name} has rows in partitions {unflushed} that are in no segment"
    first = chains[world.names[0]]
    if all(len(chain) == 1 for chain in first) and all(chain == first for chain in chains.values()):
        return ""
    return f"the segments are {chains}"


def _feed(world, machine):
    return machine.life.node.feeds.of_id(world.feed_id)
