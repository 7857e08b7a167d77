"""Looks up the keys of one GET in slices, so that many keys, or large compressed blocks, do not hold up others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace.model import Level, Version
from tailrace_server.partition.partition import Partition
from tailrace_server.segment import Reads
from tailrace_server.tree.key_index import OpenBlocks

# An answer ends with the value that comes to this: with one of the largest size it still fits into a frame.
VALUE_BYTES_MAX = 16 * 1024 * 1024


class Lookup:
    """``items`` are the answers found by now, in the order of the keys; ``partitions`` has the owner of each key."""

    def __init__(self, keys: Sequence[bytes], partitions: Sequence[Partition]) -> None:
        self.items: list[tuple[Version, int, bytes] | None] = []
        self._keys = keys
        self._partitions = partitions
        self._value_bytes = 0
        self._reads = Reads()

    @property
    def is_done(self) -> bool:
        """Whether every key was looked up, or the values fill an answer: the client asks again for the rest."""
        return len(self.items) == len(self._keys) or self._value_bytes >= VALUE_BYTES_MAX

    def found_bytes(self) -> int:
        """Returns the bytes of the found values. If an answer leaves keys out, the client asks for them again."""
        return self._value_bytes

    def in_flight(self, level: Level) -> list[tuple[Partition, int]]:
        """Returns the partitions whose newest rows are not at ``level`` yet, and the seqs that have to get there."""
        return [(p, p.high_seq) for p in set(self._partitions) if p.high_seq > p.visible_seq(level)]

    def step(self, out_of_time: Callable[[], bool]) -> bool:
        """Looks keys up until all is done (True), or ``out_of_time()`` (False: call it again).

        Raises NotCached if it would wait for the disk: load that, and call it again. SegmentDamaged, UnknownFeed.
        """
        opened = OpenBlocks()
        while not self.is_done:
            partition = self._partitions[len(self.items)]
            if not partition.index_keys(out_of_time):
                return False
            found = partition.find(self._keys[len(self.items)], opened, self._reads.read)
            self._reads.forget()
            if found is None or found.value is None:
                self.items.append(None)
            else:
                self.items.append((partition.version_of(found.seq), found.timestamp, found.value))
                self._value_bytes += len(found.value)
            if out_of_time():
                return self.is_done
        return True
