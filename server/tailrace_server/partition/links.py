"""The chain of a partition as links, by which the replication of segments decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.chain import ChainLink, LinkedChain

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition


def links_of(partition: Partition) -> LinkedChain:
    """Returns the links of the partition's segments, with their acknowledgements.

    The oldest one is major, also if older segments were trimmed: those are not needed beside it.
    """
    links = [
        ChainLink.of(segment.identity, partition.pushes.placements.get(segment.identity.segment_id, ()))
        for segment in partition.chain.segments
    ]
    if links and not links[0].is_major:
        links[0] = links[0]._replace(is_major=True)
    return LinkedChain(tuple(links), trimmed_seq=partition.flushed_seq)
