"""The list of a directory of Parquet files: what belongs to the index, and its checkpoint.

    DIR/part-12-40.parquet          the rows of the batches 12 to 40, by rising key, each key once
    DIR/_tailrace/STATE.json        the list, replaced as a whole: its rename commits a batch
    DIR/_tailrace/ring-41           changes of the rings, in the order of their numbers
    DIR/_tailrace/part-...          a file that the list may name already: it moves into place after the commit

Readers of Parquet pass over names that begin with an underscore.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tailrace.consuming.ring import Ring, RingChange, RingChunk, unbounded_ring
from tailrace.model.position import Positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

FORMAT_VERSION = 1
FOLDER = "_tailrace"
STATE = "STATE.json"
# This number of files of changes become one file with the whole rings.
RING_FILES_MAX = 64

_CHANGE = struct.Struct("<IQ?QI")  # partition, floor, whether it cuts, the cut, number of chunks
_CHUNK = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Part:
    """A file of rows: the batches ``first`` to ``last``. ``level`` counts how often its rows were merged."""

    first: int
    last: int
    rows: int
    level: int = 0

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"part-{self.first}-{self.last}.parquet"


@dataclass(frozen=True, slots=True)
class Undone:
    """A rollback: rows of ``partition`` up to ``batch`` whose seq is above ``seq`` count as rows without a seq."""

    partition: int
    batch: int
    seq: int


@dataclass(frozen=True, slots=True)
class State:
    """The content of the list. It is replaced, never changed.

    Attributes:
        settings: How the index was made.
        openings: How many times followers have opened it.
        batch: The number of the last batch.
        positions: The stored positions, as text; empty if there are none.
        parts: The files with rows, the oldest first.
        replaced: Names of files that others replace, with the time from which they may be removed; the oldest first.
        high_seqs: For each partition a seq: no row that counts has a higher one.
        undone: The rollbacks that rows do not show yet.
        rings: The numbers of the files of rings, the oldest first.
        key_prefix: The prefix of all keys, in hexadecimal.
    """

    settings: dict[str, str]
    openings: int = 0
    batch: int = 0
    positions: str = ""
    parts: tuple[Part, ...] = ()
    replaced: tuple[tuple[str, float], ...] = ()
    high_seqs: dict[int, int] = field(default_factory=dict)
    undone: tuple[Undone, ...] = ()
    rings: tuple[int, ...] = ()
    key_prefix: str = ""

    def to_json(self) -> bytes:
        """Returns the file's content."""
        return json.dumps(
            {
                "settings": self.settings,
                "openings": self.openings,
                "batch": self.batch,
                "positions": self.positions,
                "parts": [[part.first, part.last, part.rows, part.level] for part in self.parts],
                "replaced": self.replaced,
                "high_seqs": sorted(self.high_seqs.items()),
                "undone": [[one.partition, one.batch, one.seq] for one in self.undone],
                "rings": self.rings,
                "key_prefix": self.key_prefix,
            }
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> State:
        """Reads the file's content. Raises ValueError, KeyError or TypeError if it is damaged."""
        read: dict[str, Any] = json.loads(data)
        return cls(
            dict(read["settings"]),
            int(read["openings"]),
            int(read["batch"]),
            str(read["positions"]),
            tuple(Part(*map(int, part)) for part in read["parts"]),
            tuple((str(name), float(at)) for name, at in read["replaced"]),
            {int(partition): int(seq) for partition, seq in read["high_seqs"]},
            tuple(Undone(*map(int, one)) for one in read["undone"]),
            tuple(map(int, read["rings"])),
            str(read["key_prefix"]),
        )

    def stored(self) -> Positions | None:
        """Returns the stored positions. Raises BadPosition if they are damaged."""
        return Positions.parse(self.positions) if self.positions else None


# Rings


def encode_rings(changes: Mapping[int, RingChange]) -> bytes:
    """Returns changes of rings as the content of a file."""
    parts = []
    for partition, (floor_seq, cut_seq, chunks) in changes.items():
        parts.append(_CHANGE.pack(partition, floor_seq, cut_seq is not None, cut_seq or 0, len(chunks)))
        for chunk in chunks:
            parts += [_CHUNK.pack(len(chunk.data)), chunk.data]
    return b"".join(parts)


def _decode_rings(data: bytes) -> Iterator[tuple[int, RingChange]]:
    place = 0
    while place < len(data):
        partition, floor_seq, cuts, cut_seq, count = _CHANGE.unpack_from(data, place)
        place += _CHANGE.size
        chunks = []
        for _ in range(count):
            (size,) = _CHUNK.unpack_from(data, place)
            place += _CHUNK.size
            chunks.append(RingChunk.parse(data[place : place + size]))
            place += size
        yield partition, RingChange(floor_seq, cut_seq if cuts else None, tuple(chunks))


def change_rings(rings: dict[int, Ring], changes: Iterable[tuple[int, RingChange]]) -> None:
    """Applies changes to the rings of all partitions."""
    for partition, change in changes:
        if partition in rings:
            rings[partition].apply(change)
        else:
            rings[partition] = unbounded_ring(change)


def read_rings(folder: Path, numbers: Iterable[int]) -> dict[int, Ring]:
    """Reads the files of rings. Raises ValueError if one is damaged, OSError if one is missing."""
    rings: dict[int, Ring] = {}
    for number in numbers:
        try:
            change_rings(rings, _decode_rings((folder / f"ring-{number}").read_bytes()))
        except struct.error as error:
            raise ValueError(f"the file ring-{number} is damaged: {error}") from error
    return rings


# Durable steps


def write_durable(path: Path, data: bytes) -> None:
    """Writes a file, and returns when it is on disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Returns when a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
