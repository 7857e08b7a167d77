"""The segments whose transfer to a follower broke: kept for a while, so that the transfer can be continued.

    broke ── kept like a checkpoint of one file ──> found, and offered first, when the follower is there again ──> ended

A compaction may replace such a segment meanwhile. Each transfer that brings the follower further keeps the file for
another `checkpoint_kept_s` seconds. The bounds of all checkpoints hold: their number, the bytes of replaced segments,
and none of these on a disk that is nearly full. A restart keeps none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import Overloaded

if TYPE_CHECKING:
    from tailrace_server.chain import ChainLink
    from tailrace_server.partition.partition import Partition
    from tailrace_server.segment import Segment
    from tailrace_server.upkeep.checkpoints import Checkpoints


class BrokenTransfer(NamedTuple):
    """A transfer that broke: the segment's link as it was offered, its file, and the checkpoint that keeps it.

    ``held`` is the count of bytes that the follower is known to have.
    """

    link: ChainLink
    segment: Segment
    checkpoint_id: bytes
    held: int


class BrokenTransfers:
    """The broken transfers of a node: at most one for each partition and each follower's placement id (16 bytes)."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._broken: dict[tuple[bytes, int, bytes], BrokenTransfer] = {}

    def broke(self, partition: Partition, placement_id: bytes, link: ChainLink, segment: Segment, held: int) -> None:
        """Keeps ``segment``, of which parts were sent. The next time it is kept for longer only if ``held`` has grown.

        ``held`` is the count of bytes that it is known to have. If the node keeps as many checkpoints as it may, it
        keeps no other.
        """
        before = self.find(partition, placement_id)
        if before is not None and before.segment is segment and held <= before.held:
            return
        self.end(partition, placement_id)
        for key in [key for key, broken in self._broken.items() if not self._checkpoints.keeps(broken.checkpoint_id)]:
            del self._broken[key]
        if partition.is_dropped:
            return
        try:
            checkpoint_id = self._checkpoints.keep(partition.feed_id, (segment,))
        except Overloaded:
            return
        self._broken[_key(partition, placement_id)] = BrokenTransfer(link, segment, checkpoint_id, held)

    def find(self, partition: Partition, placement_id: bytes) -> BrokenTransfer | None:
        """Returns the broken transfer to a follower; None if its file is not kept, or is of another history by now."""
        broken = self._broken.get(_key(partition, placement_id))
        if broken is None:
            return None
        is_in_history = partition.log.may_have(broken.link.branch, broken.link.last_seq)
        if not is_in_history or not self._checkpoints.keeps(broken.checkpoint_id):
            self.end(partition, placement_id)
            return None
        return broken

    def end(self, partition: Partition, placement_id: bytes) -> None:
        """Keeps the file no longer. Does nothing if none is kept."""
        broken = self._broken.pop(_key(partition, placement_id), None)
        if broken is not None:
            self._checkpoints.release(broken.checkpoint_id)


def _key(partition: Partition, placement_id: bytes) -> tuple[bytes, int, bytes]:
    return partition.feed_id, partition.id, placement_id
