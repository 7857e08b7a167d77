"""The streams of a consumer whose node tells which partitions it reads, and from which positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tailrace.consuming.partition import ConsumerState
from tailrace.consuming.ring import RingChange
from tailrace.consuming.streams import PartitionStreams
from tailrace.model.position import Position
from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode

# The states in which the node may have a stream open for the partition's last request.
_REQUESTED = frozenset((ConsumerState.REQUESTED, ConsumerState.OPEN, ConsumerState.IN_SNAPSHOT))


class NamedStreams(PartitionStreams):
    """`PartitionStreams` that are added and removed. ``chosen_ids``: those of the feed that may be."""

    chosen_ids: Sequence[int] = ()

    def ids(self, known: Mapping[int, int]) -> list[int]:
        self.chosen_ids = chosen = super().ids(known)
        return chosen

    def add(self, id: int, position: Position, ring: RingChange | None = None) -> None:
        """Adds a partition that begins at a stored position, with the ring of an index. It is asked for at once."""
        assert self._make is not None, "`begin` comes first"
        self.handled[id] = position
        self._partitions[id] = self._waiting[id] = self._unanswered[id] = self._make(id, position, ring)

    def has(self, id: int) -> bool:
        """Tells whether a partition is read."""
        return id in self._partitions

    def remove(self, id: int) -> None:
        """Removes a partition, if it is there: its stream is closed. What the program has handled of it stays."""
        partition = self._partitions.pop(id, None)
        if partition is None:
            return
        if partition.state in _REQUESTED:
            self._closing.append(encode_frame(Opcode.STREAM_CLOSE, id=partition.stream_id))
        self._ended -= partition.state is ConsumerState.ENDED
        self.forget(partition)
        self.rollbacks.abandon(partition)
        self.catch_up.abandon(partition)
        self._waiting.pop(id, None)
        self._unanswered.pop(id, None)
        self._traces.pop(partition.stream_id, None)

    def forget_handled(self, ids: Iterable[int]) -> None:
        """Forgets how far the program has handled partitions that it does not own any more."""
        for id in ids:
            if id not in self._partitions:
                self.handled.pop(id, None)

    def drop_bytes(self, nbytes: int) -> None:
        """Counts bytes of blocks that the program does not get as consumed."""
        self._dropped_bytes += nbytes

    @property
    def read_ids(self) -> Iterable[int]:
        """The partitions that are read."""
        return self._partitions.keys()

    @property
    def is_empty(self) -> bool:
        """True if no partition is read."""
        return not self._partitions
