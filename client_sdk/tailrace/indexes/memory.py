"""An index in the memory of this process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from tailrace.checkpoint import Checkpoint
from tailrace.ring import Ring, unbounded_ring

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.indexes.protocol import AppliedMutation


class HeldVersion(NamedTuple):
    """Which mutation a held value is of. ``seq`` is 0 while its history is being rolled back."""

    partition: int
    seq: int
    timestamp: int


class MemoryIndex:
    """The present value of each key of a feed, in a dict; an `Index`.

    ``state`` maps keys to values and ``versions`` keys to their `HeldVersion`; only the follower changes them. It does
    so on a thread of its own: to iterate while it follows, take a `snapshot`. Everything outlives `close` and is
    there at the next `open`, as long as the object lives.
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
        """A copy of ``state`` that holds each batch either whole or not at all. May be called from any thread."""
        with self._lock:
            return dict(self.state)

    def open(self) -> Checkpoint | None:
        """The checkpoint of what is held; None where nothing was stored yet."""
        if self._checkpoint is None:
            return None
        return Checkpoint(self._checkpoint.positions, {id: ring.whole() for id, ring in self._rings.items()})

    def apply(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        """As `Index.apply`. BadPosition where ``checkpoint`` is of another feed than what is held."""
        if self._checkpoint is not None:
            held = self._checkpoint.positions
            checkpoint.positions.require_feed(held.cluster_id, held.feed_id)
        newest = {
            mutation.key: mutation for mutation in mutations
        }  # whatever may raise does so before the first change
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
        """Always None: no old values are kept. What is above ``seq`` is replaced by whatever is applied next."""
        with self._lock:
            for key, version in self.versions.items():
                if version.partition == partition and version.seq > seq:
                    self.versions[key] = version._replace(seq=0)

    def clear(self, partition: int) -> None:
        """As `Index.clear`."""
        with self._lock:
            for key in [key for key, version in self.versions.items() if version.partition == partition]:
                del self.state[key], self.versions[key]
            self._rings.pop(partition, None)
            if self._checkpoint is not None:
                positions = self._checkpoint.positions.without(partition)
                self._checkpoint = Checkpoint(positions) if positions else None

    def close(self) -> None:
        """Nothing to let go of: what is held stays, as a file would."""

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
