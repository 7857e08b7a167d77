"""The ring of a partition: seq and key of its recent mutations, by which a consumer can roll back. Pure.

    seq    floor                         top
     |-------|---chunk---|--chunk--|-tail-|        oldest chunk out first; the floor rises to its last seq
      unknown  every key that changed here

A consumer can go back to a seq at or above the floor: it reads each key above that seq again, and then has the state
without the lost rows. Below the floor the ring does not have all keys, so the consumer begins anew.

A chunk holds the entries of a block, or of a transaction of an index, in one string of bytes. So a ring of 100,000 keys
takes little more memory than its keys. A chunk is parsed only for a rollback:

    rows u32, bytes of keys u32, first seq u64: the seqs are dense from there; 0: they follow, rows times u64
    then (rows + 1) times offset u32, the keys
"""

from __future__ import annotations

import collections
import struct
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.model.failover import SEQ_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.block import Block
    from tailrace.block.columns import Columns

# The default of the entries that a ring keeps, if their keys have room.
RING_ROWS = 100_000
# The bytes of all rings of a consumer together. Each partition has an equal share.
RINGS_BYTES_MAX = 256 * 1024 * 1024
# Blocks of fewer rows go into the tail, because a chunk would take more memory than their rows.
SMALL_ROWS = 64
TAIL_ROWS_MAX = 1_024
# About the bytes that an entry of the tail takes in CPython, and a chunk beside its entries.
_TAIL_ENTRY_BYTES = 100
_CHUNK_BYTES = 200

_HEAD = struct.Struct("<IIQ")


class RingChunk(NamedTuple):
    """Entries (seq, key), by rising seq.

    Attributes:
        last_seq: The highest seq.
        rows: The number of entries.
        data: The entries, encoded as in the module's docstring.
    """

    last_seq: int
    rows: int
    data: bytes

    @classmethod
    def of(cls, seqs: Sequence[int], keys: Sequence[bytes]) -> RingChunk:
        """Makes a chunk of at least one entry; ``seqs`` never fall."""
        rows = len(keys)
        offsets = struct.pack(f"<{rows + 1}I", *accumulate(map(len, keys), initial=0))
        return cls._of_parts(seqs[-1], rows, 0, struct.pack(f"<{rows}Q", *seqs), offsets, b"".join(keys))

    @classmethod
    def of_arrow(cls, seqs: Any, keys: Any) -> RingChunk:
        """Makes a chunk of numpy's seqs, which never fall, and a binary array of pyarrow, which begins its buffers."""
        rows = len(keys)
        _, offsets, data = keys.buffers()
        offsets = memoryview(offsets)[: 4 * (rows + 1)]
        key_data = memoryview(data)[: offsets.cast("i")[rows]] if data is not None else b""
        return cls._of_parts(int(seqs[-1]), rows, 0, seqs.astype("<u8").tobytes(), offsets, key_data)

    @classmethod
    def of_columns(cls, columns: Columns) -> RingChunk:
        """Makes a chunk of all rows of a block. The columns are copied as they are."""
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
        """Reads the stored ``data`` of a chunk. ValueError if it is not the data of a chunk."""
        if len(data) < _HEAD.size:
            raise ValueError(f"a chunk of a ring has at least {_HEAD.size} bytes, not {len(data)}")
        rows, key_bytes, first_seq = _HEAD.unpack_from(data)
        seq_bytes = 0 if first_seq else 8 * rows
        if not rows or len(data) != _HEAD.size + seq_bytes + 4 * (rows + 1) + key_bytes:
            raise ValueError(f"a chunk of a ring of {rows} rows does not have {len(data)} bytes")
        if first_seq:
            return cls(first_seq + rows - 1, rows, data)
        (last_seq,) = struct.unpack_from("<Q", data, _HEAD.size + 8 * (rows - 1))
        return cls(last_seq, rows, data)

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """Iterates over the entries, (seq, key), by rising seq."""
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
        """About the bytes that the chunk takes in memory."""
        return len(self.data) + _CHUNK_BYTES

    def cut_above(self, seq: int) -> RingChunk | None:
        """Returns the entries up to ``seq``; None if all are above it."""
        if self.last_seq <= seq:
            return self
        kept = [entry for entry in self.entries() if entry[0] <= seq]
        return RingChunk.of(*zip(*kept, strict=True)) if kept else None


class RingChange(NamedTuple):
    """A change of a stored ring. An index applies it in the order of the attributes.

    `Index.open` returns the whole ring as a change: its floor and all its chunks.

    Attributes:
        floor_seq: Entries at or below this seq do not count any more. An index may delete them at any time.
        cut_seq: Entries above this seq are deleted; None if none are.
        chunks: The chunks to add.
    """

    floor_seq: int
    cut_seq: int | None = None
    chunks: tuple[RingChunk, ...] = ()


class Ring:
    """The recent keys of a partition: at least the newest ``rows_max``, or fewer if they take over ``bytes_max`` bytes.

    Only this file sets its fields. Invariant: the ring has every key that was added above ``floor_seq``.
    """

    def __init__(self, rows_max: int, bytes_max: int, floor_seq: int = 0) -> None:
        """Makes an empty ring that has no keys at or below ``floor_seq``."""
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
        """The number of entries."""
        return self._rows + len(self._tail_seqs)

    @property
    def nbytes(self) -> int:
        """About the bytes that the entries take in memory."""
        tail_bytes = _TAIL_ENTRY_BYTES * len(self._tail_seqs) + self._tail_key_bytes
        return self._bytes + tail_bytes + (_CHUNK_BYTES if tail_bytes else 0)

    def add_block(self, block: Block) -> None:
        """Adds the rows of a block. A ring without rows does not open it."""
        if not self._rows_max:
            seq = block.header.last_seq  # each block that a replica gets comes here
            if seq > self.top_seq:
                self.top_seq = seq
            if self.top_seq > self.floor_seq:
                self.floor_seq = self.top_seq
            return
        columns = block.columns()
        if columns.rows < SMALL_ROWS or not columns.header.first_seq:
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
            self._seal()  # after refetched rows the stream goes on below them
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
        """Raises the floor instead of adding entries."""
        self.top_seq = max(self.top_seq, *seqs)
        self.floor_seq = max(self.floor_seq, self.top_seq)

    def add_chunk(self, chunk: RingChunk) -> None:
        """Adds a chunk. The entries of a small one go into the tail, since many chunks would take much memory."""
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
        """Makes a chunk of the tail. The entries and the floor stay the same."""
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
        """Drops the oldest chunks while the ring is over its bounds."""
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
        """Returns the chunks with entries above ``seq``, the oldest first."""
        self._seal()
        return tuple(chunk for chunk in self._chunks if chunk.last_seq > seq)

    def keys_above(self, seq: int) -> list[bytes]:
        """Returns each key above ``seq`` once."""
        chunks = self.chunks_above(seq)
        return list(dict.fromkeys(key for chunk in chunks for entry_seq, key in chunk.entries() if entry_seq > seq))

    def apply(self, change: RingChange) -> None:
        """Applies ``change``."""
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
        """Returns the change that replaces the entries above ``seq`` by ``keys`` at ``by_seq``, which were read again.

        The keys stay in the ring, since their new values may be lost as well.
        """
        chunks = (RingChunk.of([by_seq] * len(keys), keys),) if keys else ()
        return RingChange(self.floor_seq, seq, chunks)

    def clear(self) -> None:
        """Drops all entries, and begins at floor 0."""
        self._reset(0)

    def whole(self) -> RingChange:
        """Returns the whole ring as a change, as `Index.open` does."""
        return RingChange(self.floor_seq, None, self.chunks_above(0))


def merged(chunks: Sequence[RingChunk]) -> RingChunk:
    """Returns one chunk with the entries of several."""
    entries = sorted(entry for chunk in chunks for entry in chunk.entries())
    return RingChunk.of(*zip(*entries, strict=True))


def unbounded_ring(change: RingChange) -> Ring:
    """Returns a ring for an index: it drops entries only when a change of the follower says so."""
    ring = Ring(SEQ_MAX, SEQ_MAX, change.floor_seq)
    ring.apply(change)
    return ring
