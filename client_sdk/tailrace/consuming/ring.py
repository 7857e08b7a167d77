"""The ring of a partition: seq and key of its recent mutations, by which a consumer can roll back. Pure.

    seq    floor                         top
     |-------|---chunk---|--chunk--|-tail-|        oldest chunk out first; the floor rises to its last seq
      unknown  every key that changed here

To go back to a seq that the ring covers, at or above its floor, a consumer reads each key above that seq again, and has
the state that it would have had without what is lost. Below the floor it does not know what to read, and begins anew.

A chunk holds the entries of a block, or of a transaction of an index, in one string of bytes, so that a ring of
100,000 keys costs little more than its keys, and is taken apart only where there is something to roll back:

    rows u32, bytes of keys u32, first seq u64: the seqs are dense from there; 0: they follow, rows times u64
    then (rows + 1) times offset u32, the keys
"""

from __future__ import annotations

import collections
import struct
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from tailrace.model.failover import SEQ_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.block.columns import Columns

# Entries that a ring keeps of a partition at least, where their keys have room: the default.
RING_ROWS = 100_000
# What the rings of all partitions of one consumer may take together; each partition has its even share.
RINGS_BYTES_MAX = 256 * 1024 * 1024
# Blocks of fewer rows are gathered: a chunk of its own would cost more than they do.
SMALL_ROWS = 64
TAIL_ROWS_MAX = 1_024
# What an entry of the tail, and a chunk beside its entries, take in CPython, about.
_TAIL_ENTRY_BYTES = 100
_CHUNK_BYTES = 200

_HEAD = struct.Struct("<IIQ")


class RingChunk(NamedTuple):
    """Entries (seq, key), by rising seq. ``last_seq`` is the highest; ``data`` as the module says."""

    last_seq: int
    rows: int
    data: bytes

    @classmethod
    def of(cls, seqs: Sequence[int], keys: Sequence[bytes]) -> RingChunk:
        """A chunk of at least one entry; ``seqs`` never fall."""
        rows = len(keys)
        offsets = struct.pack(f"<{rows + 1}I", *accumulate(map(len, keys), initial=0))
        return cls._of_parts(seqs[-1], rows, 0, struct.pack(f"<{rows}Q", *seqs), offsets, b"".join(keys))

    @classmethod
    def of_columns(cls, columns: Columns) -> RingChunk:
        """A chunk of all rows of a block, whose columns are copied as they are."""
        header, seqs = columns.header, columns.seq_buffer()
        first_seq = header.first_seq if seqs is None else 0
        offsets, key_data = columns.key_offsets, columns.key_data
        return cls._of_parts(header.last_seq, header.rows, first_seq, seqs or b"", offsets, key_data)

    @classmethod
    def _of_parts(
        cls,
        last_seq: int,
        rows: int,
        first_seq: int,
        seqs: bytes | memoryview,
        offsets: bytes | memoryview,
        key_data: bytes | memoryview,
    ) -> RingChunk:
        head = _HEAD.pack(rows, len(key_data), first_seq)
        return cls(last_seq, rows, b"".join((head, seqs, offsets, key_data)))

    @classmethod
    def parse(cls, data: bytes) -> RingChunk:
        """The chunk whose ``data`` was stored. ValueError where it is none."""
        if len(data) < _HEAD.size:
            raise ValueError(f"{len(data)} bytes are no chunk of a ring")
        rows, key_bytes, first_seq = _HEAD.unpack_from(data)
        seq_bytes = 0 if first_seq else 8 * rows
        if not rows or len(data) != _HEAD.size + seq_bytes + 4 * (rows + 1) + key_bytes:
            raise ValueError(f"{len(data)} bytes are no chunk of a ring of {rows} rows")
        if first_seq:
            return cls(first_seq + rows - 1, rows, data)
        (last_seq,) = struct.unpack_from("<Q", data, _HEAD.size + 8 * (rows - 1))
        return cls(last_seq, rows, data)

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """(seq, key) of each, by rising seq."""
        rows, data = self.rows, self.data
        _, _, first_seq = _HEAD.unpack_from(data)
        place = _HEAD.size
        seqs: Sequence[int] = range(first_seq, first_seq + rows)
        if not first_seq:
            seqs = struct.unpack_from(f"<{rows}Q", data, place)
            place += 8 * rows
        offsets = struct.unpack_from(f"<{rows + 1}I", data, place)
        keys = data[place + 4 * (rows + 1) :]
        return zip(seqs, (keys[start:stop] for start, stop in pairwise(offsets)), strict=True)

    @property
    def nbytes(self) -> int:
        """What it takes in memory, about."""
        return len(self.data) + _CHUNK_BYTES

    def cut_above(self, seq: int) -> RingChunk | None:
        """Its entries up to ``seq``; None where there are none."""
        if self.last_seq <= seq:
            return self
        kept = [entry for entry in self.entries() if entry[0] <= seq]
        return RingChunk.of(*zip(*kept, strict=True)) if kept else None


class RingChange(NamedTuple):
    """What changes in a stored ring, in this order: entries at or below ``floor_seq`` count for nothing any more (drop

    them when it suits), those above ``cut_seq`` go (None: none do), ``chunks`` are added. As an index gives it back
    when it is opened, ``chunks`` is all that there is.
    """

    floor_seq: int
    cut_seq: int | None = None
    chunks: tuple[RingChunk, ...] = ()


class Ring:
    """See the module. Keeps at least the newest ``rows_max`` entries, less where they take more than ``bytes_max``."""

    def __init__(self, rows_max: int, bytes_max: int, floor_seq: int = 0) -> None:
        """An empty ring, which knows nothing of what is at or below ``floor_seq``."""
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._reset(floor_seq)

    def _reset(self, floor_seq: int) -> None:
        self.floor_seq = floor_seq
        self.top_seq = 0  # the highest seq that was ever added
        self._chunks: collections.deque[RingChunk] = collections.deque()
        self._tail_seqs: list[int] = []
        self._tail_keys: list[bytes] = []
        self._tail_key_bytes = 0
        self._rows = self._bytes = 0  # of the chunks

    @property
    def rows(self) -> int:
        """How many entries there are."""
        return self._rows + len(self._tail_seqs)

    @property
    def nbytes(self) -> int:
        """What they take in memory, about."""
        tail_bytes = _TAIL_ENTRY_BYTES * len(self._tail_seqs) + self._tail_key_bytes
        return self._bytes + tail_bytes + (_CHUNK_BYTES if tail_bytes else 0)

    def add_columns(self, columns: Columns) -> None:
        """Adds the rows of a block."""
        if not self._rows_max:
            self._note(columns.header.last_seq)
        elif columns.rows < SMALL_ROWS or not columns.header.first_seq:
            self.add(columns.seqs(), columns.keys())
        else:
            self.add_chunk(RingChunk.of_columns(columns))

    def add(self, seqs: Sequence[int], keys: Sequence[bytes]) -> None:
        """Adds a few entries; ``seqs`` never fall."""
        if not self._rows_max:
            self._note(*seqs)
            return
        tail = self._tail_seqs
        if tail and seqs[0] < tail[-1]:
            self._seal()  # what was read again is followed by what comes from below it
            tail = self._tail_seqs
        tail += seqs
        self._tail_keys += keys
        self._tail_key_bytes += len(keys[0]) if len(keys) == 1 else sum(map(len, keys))
        if tail[-1] > self.top_seq:
            self.top_seq = tail[-1]
        rows = len(tail)
        if rows > TAIL_ROWS_MAX:
            self._seal()
            self._trim()
        elif self._rows + rows > self._rows_max or self.nbytes > self._bytes_max:
            self._trim()

    def _note(self, *seqs: int) -> None:
        """So far has been delivered, and is not kept."""
        self.top_seq = max(self.top_seq, *seqs)
        self.floor_seq = max(self.floor_seq, self.top_seq)

    def add_chunk(self, chunk: RingChunk) -> None:
        """Adds a chunk; a small one's entries, since thousands of them would cost more than what they hold."""
        if not self._rows_max:
            self._note(chunk.last_seq)
            return
        if chunk.rows < SMALL_ROWS:
            self.add(*zip(*chunk.entries(), strict=True))
            return
        self._seal()
        self._append(chunk)
        self._trim()

    def _seal(self) -> None:
        """Makes a chunk of the tail. What the ring covers stays the same: who asks may do so after a decision."""
        if self._tail_seqs:
            chunk = RingChunk.of(self._tail_seqs, self._tail_keys)
            self._tail_seqs, self._tail_keys, self._tail_key_bytes = [], [], 0
            self._append(chunk)

    def _append(self, chunk: RingChunk) -> None:
        self._chunks.append(chunk)
        self._rows += chunk.rows
        self._bytes += chunk.nbytes
        self.top_seq = max(self.top_seq, chunk.last_seq)

    def _trim(self) -> None:
        """Drops what is too much, the oldest first."""
        if not self._chunks and self.nbytes > self._bytes_max:
            self._seal()
        while self._chunks and (self.rows - self._chunks[0].rows >= self._rows_max or self.nbytes > self._bytes_max):
            self._drop_oldest()
            if not self._chunks and self.nbytes > self._bytes_max:
                self._seal()

    def _drop_oldest(self) -> None:
        chunk = self._chunks.popleft()
        self._rows -= chunk.rows
        self._bytes -= chunk.nbytes
        self.floor_seq = max(self.floor_seq, chunk.last_seq)

    def chunks_above(self, seq: int) -> tuple[RingChunk, ...]:
        """The chunks that have entries above ``seq``, the oldest first."""
        self._seal()
        return tuple(chunk for chunk in self._chunks if chunk.last_seq > seq)

    def keys_above(self, seq: int) -> list[bytes]:
        """Each key above ``seq`` once."""
        chunks = self.chunks_above(seq)
        return list(dict.fromkeys(key for chunk in chunks for entry_seq, key in chunk.entries() if entry_seq > seq))

    def apply(self, change: RingChange) -> None:
        """Makes ``change``."""
        floor_seq = max(self.floor_seq, change.floor_seq)
        if change.cut_seq is not None:
            kept = [cut for chunk in self.chunks_above(0) if (cut := chunk.cut_above(change.cut_seq)) is not None]
            self._reset(self.floor_seq)
            for chunk in kept:
                self._append(chunk)
        for chunk in change.chunks:
            self.add_chunk(chunk)
        self.floor_seq = max(self.floor_seq, floor_seq)
        while self._chunks and self._chunks[0].last_seq <= self.floor_seq:
            self._drop_oldest()

    def replacing(self, seq: int, by_seq: int, keys: Sequence[bytes]) -> RingChange:
        """The change after ``keys`` were read again as of ``by_seq``, in place of everything above ``seq``.

        They stay in the ring, since what was read may be lost in its turn.
        """
        chunks = (RingChunk.of([by_seq] * len(keys), keys),) if keys else ()
        return RingChange(self.floor_seq, seq, chunks)

    def clear(self) -> None:
        """Nothing was delivered."""
        self._reset(0)

    def whole(self) -> RingChange:
        """All of it, as an index that keeps it in memory gives it back."""
        return RingChange(self.floor_seq, None, self.chunks_above(0))


def merged(chunks: Sequence[RingChunk]) -> RingChunk:
    """One chunk of the entries of several."""
    entries = sorted(entry for chunk in chunks for entry in chunk.entries())
    return RingChunk.of(*zip(*entries, strict=True))


def unbounded_ring(change: RingChange) -> Ring:
    """A ring that an index keeps as it is told: what is dropped is for the follower to say."""
    ring = Ring(SEQ_MAX, SEQ_MAX, change.floor_seq)
    ring.apply(change)
    return ring
