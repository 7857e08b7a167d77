"""The follower's side: its answer to an offered segment, and the effect of a received one. Pure.

The first row that fits decides:

| the offered segment                                               | answer              | effect               |
|-------------------------------------------------------------------|---------------------|----------------------|
| comes while the most segments are being received                  | OVERLOADED          |                      |
| is being received                                                 | INFLIGHT            |                      |
| comes to a leader, or not from the leader that is followed        | INVALID             |                      |
| is of a branch that is not in the failover log, or that ended     | INVALID             |                      |
|   below the segment's last seq: another history                   |                     |                      |
| is referenced                                                     | EXISTS              |                      |
| fits into the chain                                               | ACCEPT fast-forward | takes its place      |
| ends at or below the last seq: its rows are here                  | EXISTS              |                      |
| begins above the last seq: its base is not here                   | OUT_OF_ORDER        |                      |
| begins at or below the last seq                                   | ACCEPT merge        | rows above are added |

The failover log decides about history, and ids decide about files. (branch, seq) names one mutation for ever, so rows
up to the last seq are here, whatever segments they came in.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tailrace.model.failover import FailoverEntry, FailoverLog, common_seq
from tailrace_server.chain.link import ChainLink, bounded_history
from tailrace_server.chain.linked_chain import LinkedChain

# The most segments of a partition that a follower receives at the same time.
INCOMING_MAX = 4


class OfferCase(enum.Enum):
    """The answer to an offer; the first two accept it, and differ in their effect."""

    FAST_FORWARD = enum.auto()
    """The segment's file becomes a link of the chain. No row is read."""
    MERGE = enum.auto()
    """The segment's rows above the last seq become a segment of this node's own."""
    EXISTS = enum.auto()
    OVERLOADED = enum.auto()
    INVALID = enum.auto()
    INFLIGHT = enum.auto()
    OUT_OF_ORDER = enum.auto()

    @property
    def is_accepted(self) -> bool:
        """Whether the segment is to be sent."""
        return self in (OfferCase.FAST_FORWARD, OfferCase.MERGE)


class SegmentOffer(NamedTuple):
    """An offer of ``link`` by the leader of ``term``, whose placement id is ``sender``."""

    term: int
    sender: bytes
    link: ChainLink


class Receiver(NamedTuple):
    """The state of a partition by which a node answers offers; immutable.

    ``term`` is the leadership that the node follows or has promised, or its own if it ``leads``. ``log`` is the
    failover log of ``chain``. ``incoming`` are the ids of the segments that are being received; a node judges an offer
    when none of the partition is.
    """

    chain: LinkedChain = LinkedChain()
    log: FailoverLog = FailoverLog()
    term: int = 0
    leads: bool = False
    incoming: frozenset[bytes] = frozenset()

    def case_of(self, offer: SegmentOffer) -> OfferCase:
        """Returns the answer to ``offer``, by the table of this module."""
        if len(self.incoming) >= INCOMING_MAX:
            return OfferCase.OVERLOADED
        if offer.link.id in self.incoming:
            return OfferCase.INFLIGHT
        return self._case_by_chain(offer)

    def begun(self, offer: SegmentOffer) -> Receiver:
        """Returns this state after it has accepted ``offer``."""
        return self._replace(incoming=self.incoming | {offer.link.id})

    def abandoned(self, id: bytes) -> Receiver:
        """Returns this state after the transfer of the segment ``id`` has ended early, or its file was wrong."""
        return self._replace(incoming=self.incoming - {id})

    def received(self, offer: SegmentOffer, own_id: bytes) -> tuple[Receiver, OfferCase]:
        """Returns this state with the offered segment in its chain, and the case; the file is complete and verified.

        The chain may have changed during the transfer, so the offer is judged again. Any case but FAST_FORWARD and
        MERGE drops the file and is answered in place of an acknowledgement. ``own_id`` (16 random bytes) is the id of
        the segment that a merge writes.
        """
        state = self.abandoned(offer.link.id)
        case = state._case_by_chain(offer)
        link = offer.link._replace(placements=frozenset({offer.sender}))
        if case is OfferCase.FAST_FORWARD:
            chain = state.chain.installed(link)
            assert chain is not None
            return state._replace(chain=chain), case
        if case is OfferCase.MERGE:
            chain = state.chain.installed(merged_link(state.chain, link, own_id))
            assert chain is not None, "a merged segment continues the chain"
            return state._replace(chain=chain), case
        if case is OfferCase.EXISTS:
            return state._replace(chain=state.chain.acknowledged(link.id, offer.sender)), case
        return state, case

    def promised(self, term: int) -> Receiver:
        """Returns this state after a promise of ``term``, which is durable: offers of lower terms are invalid now."""
        return Receiver(self.chain, self.log, max(term, self.term))

    def following(self, term: int, log: FailoverLog, high_seq: int) -> Receiver:
        """Returns this state after it has rolled back to the history of the leader of ``term``, to follow it.

        ``log`` and ``high_seq`` are the leader's. Log and chain are stored in one write. The transfers of an older
        leadership end.
        """
        assert term >= self.term, "a node follows no older leader"
        shared = common_seq(self.log, self.chain.last_seq, log, high_seq) or 0
        return Receiver(self.chain.rolled_back(shared), log, term)

    def leading(self, term: int, branch: bytes) -> Receiver:
        """Returns this state as the leader of ``term``, on a new ``branch`` (16 bytes) from its last seq on."""
        log = self.log.with_entry(FailoverEntry(branch, term, self.chain.last_seq))
        return Receiver(self.chain, log, term, leads=True)

    def is_in_history(self, link: ChainLink) -> bool:
        """Returns whether the failover log has the branch of ``link`` up to the link's last seq.

        The log keeps a bounded number of branches. Below the base of the oldest one no branch is known any more, and
        the term alone decides.
        """
        if self.log and link.last_seq <= self.log[-1].base:
            return True
        return self.log.may_have(link.branch, link.last_seq)

    def _case_by_chain(self, offer: SegmentOffer) -> OfferCase:
        link, last_seq = offer.link, self.chain.last_seq
        if self.leads or offer.term != self.term or not self.is_in_history(link):
            return OfferCase.INVALID
        if self.chain.is_referenced(link.id):
            return OfferCase.EXISTS
        if self.chain.installed(link) is not None:
            return OfferCase.FAST_FORWARD
        if link.last_seq <= last_seq:
            return OfferCase.EXISTS
        return OfferCase.OUT_OF_ORDER if link.after_seq > last_seq else OfferCase.MERGE


def merged_history(chain: LinkedChain, link: ChainLink) -> tuple[bytes, ...]:
    """Returns the included ids of the segment that a merge of ``link`` writes.

    Segments that the chain has, or includes, are left out: an id is in a chain once. The leader may have compacted them
    into ``link`` with rows that this node has in other segments.
    """
    return tuple(id for id in bounded_history(link) if not any(one.includes(id) for one in chain.links))


def merged_link(chain: LinkedChain, link: ChainLink, own_id: bytes) -> ChainLink:
    """Returns the link of the segment that a merge of ``link`` writes: its rows above the chain's last seq.

    It includes ``link``, so the leader's next segment, which is based on ``link``, continues it.
    """
    return link._replace(
        id=own_id,
        base_id=chain.root_id,
        included_ids=merged_history(chain, link),
        is_major=not chain.links,
        after_seq=chain.last_seq,
    )


def replaces(seq: int, held_seq: int | None) -> bool:
    """Returns whether a row of ``seq`` takes the place of the held row of its key, of ``held_seq``; None: no row.

    The higher seq wins. A tombstone has a seq as well, so it is held until a compaction drops it.
    """
    return held_seq is None or seq > held_seq
