"""Decides how segments pass from a leader to its followers (docs/internals/chain.md). Pure.

Feeds in replication mode ``segment`` use all but applied_ranges.py, which is for followers that copy segments.

link.py             a link of the chain: a segment's id, base, included ids, run and acknowledgements
linked_chain.py     the links of a partition, and the ones that they replaced
compaction_rules.py  the link of a compaction's result, and the tombstones that it may drop
offering.py         the leader: which segment it offers to a target next, and the effect of each answer
receiving.py        the follower: its answer to an offer, and the effect of a received segment
applied_ranges.py   the seqs that a follower holds beyond its contiguous prefix, and the holes
"""

from __future__ import annotations

from tailrace_server.chain.applied_ranges import AppliedRange, AppliedRanges
from tailrace_server.chain.compaction_rules import compacted_link, tombstones_bound
from tailrace_server.chain.link import ChainLink
from tailrace_server.chain.linked_chain import LinkedChain
from tailrace_server.chain.offering import OfferEvent, OfferState, Target, advance, next_link, reconnected
from tailrace_server.chain.receiving import OfferCase, Receiver, SegmentOffer, replaces

__all__ = [
    "AppliedRange",
    "AppliedRanges",
    "ChainLink",
    "LinkedChain",
    "OfferCase",
    "OfferEvent",
    "OfferState",
    "Receiver",
    "SegmentOffer",
    "Target",
    "advance",
    "compacted_link",
    "next_link",
    "reconnected",
    "replaces",
    "tombstones_bound",
]
