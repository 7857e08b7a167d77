"""The link of a compaction's result: its base, its included ids, and the tombstones that it may drop. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tailrace_server.chain.link import ChainLink, bounded_history


def compacted_link(
    id: bytes, inputs: Sequence[ChainLink], behind: ChainLink | None = None, purged_seq: int = 0
) -> ChainLink:
    """Returns the link of the segment ``id`` that was compacted from ``inputs``, neighbours of a chain, oldest first.

    The result takes the place of its inputs, so its base is that of the oldest. It is major if the oldest is.
    ``behind`` is the next link of the chain, if there is one: its base never leaves the included ids. ``purged_seq`` is
    the highest seq of a tombstone that was dropped; 0: none. No placement has acknowledged the result yet.
    """
    oldest, newest = inputs[0], inputs[-1]
    assert all(newer.continues(older) for older, newer in itertools.pairwise(inputs)), "only neighbours are compacted"
    assert not purged_seq or oldest.is_major, "only a compaction of the oldest segment drops tombstones"
    return ChainLink(
        id=id,
        base_id=oldest.base_id,
        included_ids=bounded_history(newest, inputs[-2::-1], () if behind is None else (behind.base_id,)),
        is_major=oldest.is_major,
        branch=newest.branch,
        after_seq=oldest.after_seq,
        last_seq=newest.last_seq,
        purge_seq=max(purged_seq, *(link.purge_seq for link in inputs)),
    )


def tombstones_bound(inputs: Sequence[ChainLink], stable_seq: int) -> int:
    """Returns the seq up to which a compaction of ``inputs`` may drop tombstones; 0: it may drop none.

    A tombstone hides older puts of its key, so the oldest segment must be among the inputs. No rollback reaches below
    ``stable_seq``, so the deletion is never taken back.
    """
    return min(stable_seq, inputs[-1].last_seq) if inputs[0].is_major else 0


def compactable(links: Sequence[ChainLink], stable_seq: int) -> tuple[ChainLink, ...]:
    """Returns the oldest links that a compaction may take: they end at or below ``stable_seq``."""
    return tuple(itertools.takewhile(lambda link: link.last_seq <= stable_seq, links))
