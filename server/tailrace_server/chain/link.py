"""A link of a partition's chain: the facts of a segment that replication decides by. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tailrace.segment.identity import INCLUDED_IDS_MAX, SegmentIdentity


class ChainLink(NamedTuple):
    """A segment: the run (``after_seq``, ``last_seq``], and the branch (16 bytes) of its last seq.

    ``id`` is 16 random bytes. ``base_id`` is the segment before it when it was made; zeros: none. The rows of
    ``included_ids`` are in it, too: it was compacted or merged from them. At most INCLUDED_IDS_MAX are known.
    ``is_major``: no older segment of the partition is needed beside it. ``purge_seq`` is the highest seq of a row that
    is missing without a newer row of its key; 0: none. ``placements`` are the data directories that have acknowledged
    it.
    """

    id: bytes
    base_id: bytes
    included_ids: tuple[bytes, ...]
    is_major: bool
    branch: bytes
    after_seq: int
    last_seq: int
    purge_seq: int = 0
    placements: frozenset[bytes] = frozenset()

    @classmethod
    def of(cls, identity: SegmentIdentity, placements: Iterable[bytes] = ()) -> ChainLink:
        """Returns the link of a segment with this identity."""
        return cls(
            id=identity.segment_id,
            base_id=identity.base_id,
            included_ids=identity.included_ids,
            is_major=identity.is_major,
            branch=identity.branch,
            after_seq=identity.after_seq,
            last_seq=identity.last_seq,
            purge_seq=identity.purge_seq,
            placements=frozenset(placements),
        )

    def includes(self, id: bytes) -> bool:
        """Returns whether the segment ``id`` is this one, or is known to be included in it."""
        return id == self.id or id in self.included_ids

    def continues(self, older: ChainLink) -> bool:
        """Returns whether this segment begins at the end of ``older``, and is based on it or on one it includes."""
        return self.after_seq == older.last_seq and older.includes(self.base_id)

    def covers(self, other: ChainLink) -> bool:
        """Returns whether the run of ``other`` is inside this one's."""
        return self.after_seq <= other.after_seq and other.last_seq <= self.last_seq

    def with_placement(self, placement: bytes) -> ChainLink:
        """Returns this link, acknowledged by ``placement`` as well."""
        return self._replace(placements=self.placements | {placement})

    def without_placement(self, placement: bytes) -> ChainLink:
        """Returns this link without an acknowledgement of ``placement``."""
        return self._replace(placements=self.placements - {placement})

    def check(self) -> None:
        """Walks the invariants; AssertionError names the one that does not hold."""
        assert self.after_seq < self.last_seq, f"segment {self.id.hex()} has an empty run"
        assert self.purge_seq <= self.last_seq, f"segment {self.id.hex()} has a purge seq above its last seq"
        assert len(self.included_ids) <= INCLUDED_IDS_MAX, f"segment {self.id.hex()} names too many included ids"
        assert self.id not in self.included_ids, f"segment {self.id.hex()} includes itself"


def bounded_history(
    newest: ChainLink, older: Iterable[ChainLink] = (), needed: Iterable[bytes] = ()
) -> tuple[bytes, ...]:
    """Returns the included ids of a segment that has the rows of these segments; at most INCLUDED_IDS_MAX.

    ``older`` are the segments before ``newest``, newest first. The ids come in the order of their use: ``needed``, on
    which a segment behind is based; ``newest``, on which a segment may be based that is being flushed; the inputs; and
    then the segments that were included in them.
    """
    inputs = (newest, *older)
    ids = [*needed, *(link.id for link in inputs), *(id_ for link in inputs for id_ in link.included_ids)]
    return tuple(dict.fromkeys(ids))[:INCLUDED_IDS_MAX]
