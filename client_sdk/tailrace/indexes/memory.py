"""An index in the memory of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tailrace.consuming.ring import Ring, unbounded_ring
from tailrace.indexes.applied import AppliedMutations, are_above, raised
from tailrace.indexes.checkpoint import Checkpoint, require_prefix

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
    versions: Mapping[bytes, HeldVersion]

    def __init__(self) -> None:
        self.state = {}
        # Plain tuples of a `HeldVersion`: the collector of garbage looks at those once, and at objects for ever.
        self._versions: dict[bytes, tuple[int, int, int]] = {}
        self.versions = _Versions(self._versions)
        self._checkpoint: Checkpoint | None = None
        self._rings: dict[int, Ring] = {}
        self._high_seqs: dict[int, int] = {}  # of each partition a seq: no row that counts has a higher one
        self._lock = threading.Lock()
        self._key_prefix = b""

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

    def keep_prefix(self, key_prefix: bytes) -> None:
        """Notes the prefix of all keys. The follower calls it after `open`.

        Args:
            key_prefix: The prefix that is followed.

        Raises:
            ValueError: The index was filled with another prefix.
        """
        if self._checkpoint is not None:
            require_prefix(self, self._key_prefix, key_prefix)
        self._key_prefix = key_prefix

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
        rows = AppliedMutations.of(mutations)
        with self._lock:
            self._store_rows(rows)
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
            self._high_seqs[partition] = min(self._high_seqs.get(partition, 0), seq)
            for key, (held_partition, held_seq, timestamp) in self._versions.items():
                if held_partition == partition and held_seq > seq:
                    self._versions[key] = (partition, 0, timestamp)

    def clear(self, partition: int) -> None:
        """Deletes everything of a partition, as `Index.clear`.

        Args:
            partition: The partition.
        """
        with self._lock:
            for key in [key for key, version in self._versions.items() if version[0] == partition]:
                del self.state[key], self._versions[key]
            self._rings.pop(partition, None)
            self._high_seqs.pop(partition, None)
            if self._checkpoint is not None:
                positions = self._checkpoint.positions.without(partition)
                self._checkpoint = Checkpoint(positions) if positions else None

    def close(self) -> None:
        """Does nothing: the content stays."""

    def _store_rows(self, rows: AppliedMutations) -> None:
        versions = self._versions
        if not are_above(self._high_seqs, rows):
            held = map(versions.get, rows.keys)
            columns = zip(held, rows.partitions, rows.seqs, strict=True)
            is_older = [
                version is not None and version[1] > seq and version[0] == partition
                for version, partition, seq in columns
            ]
            if any(is_older):
                rows = rows.where(not older for older in is_older)
        self._high_seqs = raised(self._high_seqs, rows)
        upserts = rows.upserts()
        self.state.update(zip(upserts.keys, upserts.values, strict=True))  # type: ignore[arg-type]
        numbers = zip(upserts.partitions, upserts.seqs, upserts.timestamps, strict=True)
        versions.update(zip(upserts.keys, numbers, strict=True))
        for key in rows.deletions().keys:
            if key in versions:
                del self.state[key], versions[key]


class _Versions(Mapping[bytes, HeldVersion]):
    """Shows tuples as objects."""

    def __init__(self, versions: dict[bytes, tuple[int, int, int]]) -> None:
        self._versions = versions

    def __getitem__(self, key: bytes) -> HeldVersion:
        return HeldVersion(*self._versions[key])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)
