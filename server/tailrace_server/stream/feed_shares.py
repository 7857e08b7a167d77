"""The shares of feeds in the window of a replica's connection. Pure.

A replica may be held up with one feed, by a flush or a rollback. Blocks of that feed then wait at the replica, and use
the window that all feeds share. So a feed may only have more under way as long as it has less than what is left of the
window: the first feed that is held up gets half of the window, the next one a quarter. The others always find room.
Source: Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches".

Only streams whose replica credits each stream count (`PartitionStream.is_credited`).
"""

from __future__ import annotations

from tailrace_server.stream.stream_slot import StreamSlot


class FeedShares:
    """The bytes under way of each feed of a connection, and the streams that wait because their feed has too many."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, int] = {}  # by feed id; none is 0
        self._held: dict[bytes, dict[StreamSlot, None]] = {}

    @property
    def is_holding(self) -> bool:
        """Whether a stream waits until its feed has room."""
        return bool(self._held)

    def sent(self, slot: StreamSlot, nbytes: int) -> None:
        """Notes that blocks of so many bytes were sent, if the stream counts."""
        if slot.stream.is_credited:
            slot.add_under_way(nbytes)
            self._change(slot.stream.partition.feed_id, nbytes)

    def credited(self, slot: StreamSlot, nbytes: int) -> None:
        """Notes that the replica has handled so many bytes of the stream."""
        nbytes = min(nbytes, slot.under_way_bytes)
        slot.add_under_way(-nbytes)
        self._change(slot.stream.partition.feed_id, -nbytes)

    def _change(self, feed_id: bytes, nbytes: int) -> None:
        left = self._under_way.get(feed_id, 0) + nbytes
        if left:
            self._under_way[feed_id] = left
        else:
            self._under_way.pop(feed_id, None)

    def has_room(self, slot: StreamSlot, free_bytes: int) -> bool:
        """Returns whether the stream may send a block, if ``free_bytes`` are left of the window."""
        return not slot.stream.is_credited or self._fits(slot.stream.partition.feed_id, free_bytes)

    def has_room_behind(self, slot: StreamSlot, nbytes: int, free_bytes: int) -> bool:
        """Returns whether the stream may send a block behind others of so many bytes, if ``free_bytes`` are left."""
        if not slot.stream.is_credited:
            return nbytes < free_bytes
        return self._under_way.get(slot.stream.partition.feed_id, 0) + nbytes < free_bytes - nbytes

    def _fits(self, feed_id: bytes, free_bytes: int) -> bool:
        return self._under_way.get(feed_id, 0) < max(free_bytes, 1)

    def hold(self, slot: StreamSlot) -> None:
        """Notes that a stream with a turn waits until its feed has room."""
        self._held.setdefault(slot.stream.partition.feed_id, {})[slot] = None

    def holds(self, slot: StreamSlot) -> bool:
        """Returns whether the stream waits until its feed has room."""
        return slot in self._held.get(slot.stream.partition.feed_id, ())

    def take_released(self, free_bytes: int) -> list[StreamSlot]:
        """Returns the streams whose feed has room again. They wait no more."""
        released: list[StreamSlot] = []
        for feed_id in [feed_id for feed_id in self._held if self._fits(feed_id, free_bytes)]:
            released += self._held.pop(feed_id)
        return released

    def let_go(self, slot: StreamSlot) -> None:
        """Notes that a stream that waited has its turn no more."""
        feed_id = slot.stream.partition.feed_id
        del self._held[feed_id][slot]
        if not self._held[feed_id]:
            del self._held[feed_id]

    def forget(self, slot: StreamSlot) -> None:
        """Forgets a stream that ends, and what it has under way."""
        if self.holds(slot):
            self.let_go(slot)
        self.credited(slot, slot.under_way_bytes)
