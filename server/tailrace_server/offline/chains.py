"""Chooses a chain from the identities of segments, without a manifest. Pure.

    on disk   (0, 120]   (120, 400]   (0, 400] of the two   (400, 401]     chosen: (0, 400], (400, 401]
    on disk   (0, 120]                (400, 401]                           chosen: both, and the gap (120, 400]

Several files may cover the same seqs: inputs of a compaction that were still being read, or files left by a crash. All
of them are right. So it chooses the chain that reaches furthest, with the fewest missing seqs and then the fewest
segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace_server.segment import SegmentIdentity


class Gap(NamedTuple):
    """The seqs (``after_seq``, ``last_seq``], which no segment has."""

    after_seq: int
    last_seq: int


Piece = SegmentIdentity | Gap


def choose_chain(identities: Sequence[SegmentIdentity], begin: int) -> list[Piece]:
    """Returns segments and gaps that cover all seqs from ``begin`` to the highest last seq; empty without segments.

    A segment directly above another one in the result was based on it, or on a segment that is included in it.
    """
    best: dict[bytes, tuple[tuple[int, int], list[SegmentIdentity]]] = {}
    for identity in sorted(identities, key=lambda i: (i.last_seq, i.after_seq)):
        cost, chain = (identity.after_seq - begin, 1), [identity]
        for (missing, count), before in best.values():
            last = before[-1]
            gap = identity.after_seq - last.last_seq
            if gap < 0 or (gap == 0 and not _follows(last, identity)):
                continue
            cost, chain = min((cost, chain), ((missing + gap, count + 1), [*before, identity]), key=lambda c: c[0])
        best[identity.segment_id] = cost, chain
    if not best:
        return []
    top = max(chain[-1].last_seq for _, chain in best.values())
    _, chosen = min((found for found in best.values() if found[1][-1].last_seq == top), key=lambda found: found[0])
    return _with_gaps(chosen, begin)


def _follows(older: SegmentIdentity, newer: SegmentIdentity) -> bool:
    return newer.base_id == older.segment_id or newer.base_id in older.included_ids


def _with_gaps(chain: list[SegmentIdentity], begin: int) -> list[Piece]:
    pieces: list[Piece] = []
    for identity in chain:
        if identity.after_seq > begin:
            pieces.append(Gap(begin, identity.after_seq))
        pieces.append(identity)
        begin = identity.last_seq
    return pieces
