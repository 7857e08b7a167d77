"""An index in the memory of this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from tailrace.consuming.ring import Ring, unbounded_ring
from tailrace.indexes.checkpoint import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.indexes.protocol import AppliedMutation


class HeldVersion(NamedTuple):
    """The version of a value in a `MemoryIndex`.

    Attributes:
        partition: The partition, from 0.
        seq: The seq of the mutation; 0 while its history is rolled back.
        timestamp: When the node accepted it, in microseconds since 1970 UTC.
    """

    partition: int
    seq: int
    timestamp: int


class MemoryIndex:
    """The current value of each key of a feed, in a dict.

    Only the follower changes the dicts, on a thread of its own. Take a `snapshot` to iterate while it runs. The content
    survives `close`, and the next `open` continues with it.

    Attributes:
        state: The value of each key.
        versions: The `HeldVersion` of each key.
    """

    state: dict[bytes, bytes]
    versions: dict[bytes, HeldVersion]

    def __init__(self) -> None:
        self.state = {}
        self.versions = {}
        self._checkpoint: Checkpoint | None = None
        self._rings: dict[int, Ring] = {}
        self._lock = threading.Lock()

    def snapshot(self) -> dict[bytes, bytes]:
        """Copies ``state``. Any thread may call it.

        Returns:
            A copy that holds each batch either whole or not at all.
        """
        with self._lock:
            return dict(self.state)

    def open(self) -> Checkpoint | None:
        """Returns the checkpoint of the content.

        Returns:
            The checkpoint, or None if nothing was stored yet.
        """
        if self._checkpoint is None:
            return None
        return Checkpoint(self._checkpoint.positions, {id: ring.whole() for id, ring in self._rings.items()})

    def apply(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        """Stores mutations and their checkpoint, as `Index.apply`.

        Args:
            mutations: The mutations.
            checkpoint: The new checkpoint.

        Raises:
            BadPosition: The checkpoint belongs to another feed than the content.
        """
        if self._checkpoint is not None:
            held = self._checkpoint.positions
            checkpoint.positions.require_feed(held.cluster_id, held.feed_id)
        # An error of the caller's mutations is raised here, before the first change.
        newest = {mutation.key: mutation for mutation in mutations}
        with self._lock:
            for mutation in newest.values():
                self._apply_one(mutation)
            self._checkpoint = checkpoint if checkpoint.positions else None
            for partition, change in checkpoint.rings.items():
                if partition in self._rings:
                    self._rings[partition].apply(change)
                else:
                    self._rings[partition] = unbounded_ring(change)

    def rollback(self, partition: int, seq: int) -> None:
        """Prepares for the values of another history, as `Index.rollback`. No old values are kept.

        Args:
            partition: The partition.
            seq: The last seq that both histories share.

        Returns:
            Always None. The next mutations replace the rows above ``seq``.
        """
        with self._lock:
            for key, version in self.versions.items():
                if version.partition == partition and version.seq > seq:
                    self.versions[key] = version._replace(seq=0)

    def clear(self, partition: int) -> None:
        """Deletes everything of a partition, as `Index.clear`.

        Args:
            partition: The partition.
        """
        with self._lock:
            for key in [key for key, version in self.versions.items() if version.partition == partition]:
                del self.state[key], self.versions[key]
            self._rings.pop(partition, None)
            if self._checkpoint is not None:
                positions = self._checkpoint.positions.without(partition)
                self._checkpoint = Checkpoint(positions) if positions else None

    def close(self) -> None:
        """Does nothing: the content stays."""

    def _apply_one(self, mutation: AppliedMutation) -> None:
        partition, key, value, seq, timestamp = mutation
        version = self.versions.get(key)
        if version is not None and version.partition == partition and version.seq > seq:
            return
        if value is not None:
            self.state[key] = value
            self.versions[key] = HeldVersion(partition, seq, timestamp)
        elif version is not None:
            del self.state[key], self.versions[key]
