"""The links of a partition's segments: those of the chain, and those that they have replaced. Pure.

    links      M (0, 120]  <──  c (120, 400]  <──  d (400, 401]     the root is d, the newest
    retired    a (0, 50]   b (50, 120]                              M was compacted from them

A link of the chain is *strongly referenced*: it is needed to read the partition. A retired link, and any segment that
is only named as included, is *weakly referenced*: its rows, or newer rows of their keys, are in a newer link.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import NamedTuple

from tailrace.segment.identity import NO_BASE
from tailrace_server.chain.link import ChainLink


class LinkedChain(NamedTuple):
    """The links of a partition; immutable.

    ``links`` are the chain, oldest first: each begins at the end of the one before it, and is based on that one or on a
    segment that it includes. ``retired`` are links that have left the chain, and whose files are still there.
    ``trimmed_seq`` is the last seq of a chain without links: those of a history may all have been trimmed.
    """

    links: tuple[ChainLink, ...] = ()
    retired: tuple[ChainLink, ...] = ()
    trimmed_seq: int = 0

    @property
    def root(self) -> ChainLink | None:
        """The newest link; None if the partition has no segment yet."""
        return self.links[-1] if self.links else None

    @property
    def root_id(self) -> bytes:
        """The id of the newest link (16 bytes); zeros if there is none. The next flush is based on it."""
        return self.links[-1].id if self.links else NO_BASE

    @property
    def last_seq(self) -> int:
        """The last seq of the newest link; if there is none, that of the links that were trimmed, or 0."""
        return self.links[-1].last_seq if self.links else self.trimmed_seq

    @property
    def purge_seq(self) -> int:
        """The highest seq of a row that is missing without a newer row of its key; 0: none."""
        return max((link.purge_seq for link in self.links), default=0)

    @property
    def recent(self) -> tuple[ChainLink, ...]:
        """The links from the most recent major one on; a target that has nothing needs these."""
        majors = [index for index, link in enumerate(self.links) if link.is_major]
        return self.links[majors[-1] :] if majors else self.links

    def is_referenced(self, id: bytes) -> bool:
        """Returns whether the rows of the segment ``id`` are known to be in this partition.

        False also for an included segment whose id has left the bounded history.
        """
        return any(link.includes(id) for link in (*self.links, *self.retired))

    def is_referenced_weak(self, id: bytes) -> bool:
        """Returns whether the segment ``id`` is referenced, and no reader of the partition needs its file."""
        return self.is_referenced(id) and all(link.id != id for link in self.links)

    def flushed(self, id: bytes, branch: bytes, last_seq: int) -> LinkedChain:
        """Returns this chain with a flushed segment ``id`` at its end. Only a leader flushes."""
        link = ChainLink(id, self.root_id, (), not self.links, branch, self.last_seq, last_seq)
        return self._replace(links=(*self.links, link))

    def installed(self, link: ChainLink) -> LinkedChain | None:
        """Returns this chain with ``link`` in the place of the links that it covers, which retire.

        This is a fast-forward: it reads no row. None if the link does not fit:

        - a link of the chain reaches beyond it on either side, unless it is major: then all older links retire;
        - it does not continue the link before it, or the link behind it does not continue it;
        - nothing is before it, and it is not major;
        - all links were trimmed, and none of its rows is above them.
        """
        if not self.links and link.last_seq <= self.trimmed_seq:
            return None
        older = [] if link.is_major else [one for one in self.links if one.last_seq <= link.after_seq]
        newer = [one for one in self.links if one.after_seq >= link.last_seq]
        covered = self.links[len(older) : len(self.links) - len(newer)]
        if not all(one.last_seq <= link.last_seq and (link.is_major or link.covers(one)) for one in covered):
            return None
        if not link.is_major and not (older and link.continues(older[-1])):
            return None
        if newer and not newer[0].continues(link):
            return None
        return LinkedChain((*older, link, *newer), (*self.retired, *covered))

    def compacted(self, result: ChainLink) -> LinkedChain:
        """Returns this chain with the result of a compaction in the place of its inputs, which retire."""
        chain = self.installed(result)
        assert chain is not None, "only neighbours of one chain can be compacted"
        return chain

    def rolled_back(self, seq: int) -> LinkedChain:
        """Returns the chain after a rollback to ``seq``: it stands at its last end of a link at or below ``seq``.

        A link that reaches above ``seq`` goes whole: the state inside its run is not known. Files that left the chain
        are kept aside by the caller, not removed.
        """
        links = tuple(link for link in self.links if link.last_seq <= seq)
        end = links[-1].last_seq if links else 0
        return LinkedChain(links, tuple(link for link in self.retired if link.last_seq <= end))

    def acknowledged(self, id: bytes, placement: bytes) -> LinkedChain:
        """Returns this chain after ``placement`` has acknowledged the segment ``id``."""
        return self._mapped(lambda link: link.with_placement(placement) if link.id == id else link)

    def forgotten(self, placement: bytes, above: int = -1) -> LinkedChain:
        """Returns this chain without the acknowledgements by ``placement`` of links that end above seq ``above``."""
        return self._mapped(lambda link: link.without_placement(placement) if link.last_seq > above else link)

    def acknowledgements(self, link: ChainLink) -> frozenset[bytes]:
        """Returns the placements that hold the rows of ``link``: they acknowledged it, or one of the chain over it."""
        over = (one.placements for one in self.links if one.includes(link.id) or one.covers(link))
        return link.placements.union(*over)

    def deletable(self, placements: Collection[bytes], pinned: Collection[bytes] = ()) -> tuple[ChainLink, ...]:
        """Returns the links whose files may be removed.

        They are retired, all of ``placements`` have acknowledged them, and no reader has them in ``pinned`` (ids). For
        a leader, ``placements`` are its connected targets: a file stays while one of them may resume a transfer. For a
        follower, ``placements`` is its leader.
        """
        needed = frozenset(placements)
        return tuple(link for link in self.retired if link.id not in pinned and needed <= self.acknowledgements(link))

    def without(self, links: Collection[ChainLink]) -> LinkedChain:
        """Returns this chain after the files of ``links``, which are retired, were removed."""
        gone = {link.id for link in links}
        return self._replace(retired=tuple(link for link in self.retired if link.id not in gone))

    def check(self) -> None:
        """Walks the invariants; AssertionError names the one that does not hold."""
        for link in (*self.links, *self.retired):
            link.check()
        for older, newer in itertools.pairwise(self.links):
            assert newer.continues(older), f"segment {newer.id.hex()} does not continue {older.id.hex()}"
        assert all(link.last_seq <= self.last_seq for link in self.retired), "a retired segment is above the chain"
        assert not self.links or self.links[0].is_major, "the oldest segment is not major"
        ids = [link.id for link in (*self.links, *self.retired)]
        assert len(set(ids)) == len(ids), "a segment is in the chain twice"
        ids = [id for link in self.links for id in (link.id, *link.included_ids)]
        assert len(set(ids)) == len(ids), "the chain names a segment twice"

    def _mapped(self, change: Callable[[ChainLink], ChainLink]) -> LinkedChain:
        return self._replace(links=tuple(map(change, self.links)), retired=tuple(map(change, self.retired)))
