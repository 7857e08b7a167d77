"""Decides what the end of a consumer's stream leads to: an error, another node, or another request. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.consuming.partition import ConsumedPartition
from tailrace.consuming.subscription import Subscription
from tailrace.errors import DataGone, Forbidden, TailraceError, UnknownFeed
from tailrace.model import EndReason
from tailrace.wire.stream_messages import StreamEnd

if TYPE_CHECKING:
    from tailrace.consuming.damages import Damages

FINAL: dict[EndReason, Callable[[str], TailraceError]] = {
    EndReason.TRIMMED: DataGone,
    EndReason.FORBIDDEN: Forbidden,
    EndReason.FEED_DROPPED: UnknownFeed,
}

# Ends after which another node may serve the partition. This node may be about to get it, so it is asked a few times.
_LACKING = frozenset((EndReason.BEHIND, EndReason.NOT_MY_PARTITION))
_LACKING_TRIES = 3


class StreamEnds:
    """The ends of all streams of a consumer. It counts the damage that each node has told of."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._damages: Damages | None = None  # until the first one
        self._node_id = ""

    def greeted(self, node_id: str) -> None:
        """Notes the node that ends streams from now on."""
        self._node_id = node_id

    def error(self, partition: ConsumedPartition, end: StreamEnd) -> TailraceError | None:
        """Returns the error that ends the consumer for good; None if the stream is asked for again."""
        if end.reason is EndReason.TRIMMED:
            return DataGone(f"partition {partition.id}: {end.message}", first_seq=end.first_seq, partition=partition.id)
        if end.reason in FINAL:
            return FINAL[end.reason](end.message)
        if end.reason is EndReason.DAMAGED and self._is_unreadable(partition):
            from tailrace.model.unreadable import unreadable  # most programs never meet damage

            return unreadable(self._subscription.feed, partition.id, end.message)
        return None

    def _is_unreadable(self, partition: ConsumedPartition) -> bool:
        """Notes that the node cannot read the partition's next rows. Returns whether it is not asked again."""
        from tailrace.consuming.damages import Damages  # most programs never meet damage

        if self._damages is None:
            self._damages = Damages()
        seq = 0 if partition.position is None else partition.position.seq
        return self._damages.is_final(partition.id, seq, self._node_id)

    def leads_on(self, partition: ConsumedPartition, end: StreamEnd, *, has_others: bool) -> bool:
        """Tells whether another node should be asked. ``has_others``: there may be one."""
        lacking = end.reason in _LACKING and has_others and partition.failures >= _LACKING_TRIES
        # Others may have a good copy. If a leader is wanted, there is no other one.
        damaged = end.reason is EndReason.DAMAGED and has_others and self._subscription.state != "leader"
        return lacking or damaged or end.reason is EndReason.WRONG_STATE
