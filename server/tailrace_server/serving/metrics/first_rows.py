"""Finds the timestamp of the first row above a seq of a partition.

    seq in the tree       the block's header has it, or the block is opened: it was merged of blocks of several times
    seq between segments  the identity of the next segment has it
    seq in a segment      a thread reads one block

What was opened or read is remembered while it is asked for. So a consumer that stands still costs one read at most.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tailrace.block import FLAG_TIMESTAMPS
from tailrace.errors import TailraceError
from tailrace_server.partition.chain import LostSegment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.block import Block
    from tailrace_server.partition.partition import Partition
    from tailrace_server.segment import Segment
    from tailrace_server.serving.services import Services

# The merged blocks that one scrape opens, some 50 µs each, and the blocks of segments that it reads. The next scrape
# opens and reads others.
OPENS_MAX = 256
READS_MAX = 32

# A partition, a seq, and the count of rollbacks: after one the same seq is another row.
Place: TypeAlias = "tuple[Partition, int, int]"


class Found(NamedTuple):
    """The timestamp of a row in microseconds since 1970 UTC; if ``segment`` has to be read for it, a lower bound."""

    timestamp: int
    segment: Segment | None = None


class FirstRows:
    """The rows that scrapes have asked for. Only its own methods change its fields."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self._known: dict[Place, int] = {}
        self._asked: dict[Place, int] = {}  # those of `_known` that this scrape has asked for
        self._opens = self._reads = 0

    def begin(self) -> None:
        """Begins a scrape: what the one before it has not asked for is forgotten."""
        self._known, self._asked = self._asked, {}
        self._opens, self._reads = OPENS_MAX, READS_MAX

    def above(self, partition: Partition, seq: int) -> Found | None:
        """Returns the timestamp of the first row above ``seq``; None if there is no row."""
        if seq >= partition.high_seq:
            return None
        place = partition, seq, partition.rollbacks
        timestamp = self._known.get(place)
        if timestamp is not None:
            self._asked[place] = timestamp
            return Found(timestamp)
        if seq < partition.flushed_seq:
            found = _in_segments(partition, seq)
            if found is not None:
                return found
        block = partition.tree.find(max(seq, partition.flushed_seq) + 1)
        return None if block is None else Found(self._of_block(place, block))

    def _of_block(self, place: Place, block: Block) -> int:
        header = block.header
        if not header.flags & FLAG_TIMESTAMPS or not self._opens:
            return header.timestamp
        self._opens -= 1
        timestamp = self._asked[place] = _timestamp_above(block, place[1])
        return timestamp

    async def read(self, places: Sequence[tuple[Partition, int, Segment]]) -> None:
        """Reads rows in a thread, for `above` to find them. The first ones come first if there are too many."""
        places = places[: self._reads]
        if not places:
            return
        self._reads -= len(places)
        pins = self._node.storage.pins
        for _, _, segment in places:
            pins.pin(segment)
        try:
            wanted = [(segment, seq) for _, seq, segment in places]
            found = await self._node.host.workers.in_thread(partial(_read_all, wanted))
        finally:
            for _, _, segment in places:
                pins.unpin(segment)
        for (partition, seq, _), timestamp in zip(places, found, strict=True):
            if timestamp is not None:
                self._known[partition, seq, partition.rollbacks] = timestamp


def _in_segments(partition: Partition, seq: int) -> Found | None:
    """Returns the first row above ``seq`` that a segment has; None if none has."""
    for segment in partition.chain.after(seq):
        identity = segment.identity
        if not identity.rows or segment.last_row_seq <= seq:
            continue
        is_inside = identity.after_seq < seq and not isinstance(segment, LostSegment)
        return Found(identity.oldest_timestamp, segment if is_inside else None)
    return None


def _timestamp_above(block: Block, seq: int) -> int:
    columns = block.open_columns()
    return columns.timestamps()[min(columns.row_above(seq), columns.rows - 1)]


def _read_all(wanted: Sequence[tuple[Segment, int]]) -> list[int | None]:
    """Returns the timestamp above each seq in its segment; None for what cannot be read."""
    found: list[int | None] = []
    for segment, seq in wanted:
        try:
            found.append(_timestamp_above(segment.read_block(segment.block_after(seq)), seq))
        except (TailraceError, OSError):  # others find the damage, and tell of it
            found.append(None)
    return found
