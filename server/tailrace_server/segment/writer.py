"""The writer of segments: takes blocks, then writes the tables that find them again.

1. The file has its name only when it is whole and durable: it is written as ``path + ".new"``, fsynced, renamed, and
   its directory fsynced. After a crash there is nothing under the name, or the whole file.
2. A failure leaves nothing behind, or a file that ends in ``.new`` if the disk refuses to remove it.
3. A block is verified before it is written. The caller drops its copy of the block later, so a bit that flipped in
   memory must not get a new checksum.

No work is done by row. Hashes are kept, 8 bytes a row, until the key table is made of them.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from tailrace.block import FLAG_TTLS, Block, BlockHeader, Columns
from tailrace.block.arrays import U64
from tailrace.block.header import sum_of
from tailrace.errors import BadBlock
from tailrace.segment import key_table
from tailrace.segment.block_index import BlockIndex
from tailrace.segment.format import HEADER_BYTES, TRAILER_BYTES, VERSION, VERSION_PLAIN, SegmentHeader, Trailer, end_of
from tailrace.segment.identity import ROWS_MAX, SegmentIdentity
from tailrace.segment.page import pages_of, table_begin
from tailrace_server.host.disk import TEMPORARY, Buffer, Disk, File, raise_if_no_space
from tailrace_server.segment.totals import RowTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The bytes gathered for one write: the system call costs little then, and a slow disk does not get much at once.
WRITE_BYTES = 1 << 20

# A file is fsynced after so many bytes, and not only at its end. The file system puts the space of all files in one
# transaction, so an fsync of 64 MiB also delays those of the journal: p99 32 ms in place of 16.
SYNC_BYTES = 4 << 20

# Linux takes 1,024 buffers in one call.
_BUFFERS_MAX = 1_000


class SegmentWriter:
    """Writes one segment. Any thread may use it, one at a time.

    The fields of ``identity`` from ``rows`` on stay 0: the writer fills them in. ``on_bytes`` is called with the count
    of bytes after each write of about WRITE_BYTES; an exception that it raises passes through ``add`` or ``finish``,
    and the caller then calls ``abandon``.
    """

    def __init__(
        self, disk: Disk, path: str, identity: SegmentIdentity, *, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Begins the file. ValueError for a bad identity, FileExistsError if ``path`` is taken; NoSpace, OSError."""
        identity.check()
        if identity != RowTotals().fill(identity):
            raise ValueError("the counts of an identity are the writer's to fill in, they must be 0")
        if disk.exists(path):
            raise FileExistsError(f"there is a segment {path} already; a segment id is used once")
        self._disk = disk
        self._path = path
        self._identity = identity
        self._on_bytes = on_bytes
        self._totals = RowTotals()
        self._last_seq = identity.after_seq
        self._hashes: list[U64] = []
        self._entries: list[tuple[int, int, int, int, int]] = []
        self._sum = xxhash.xxh3_128()
        self._buffers: list[Buffer] = []
        self._buffered = 0
        self._version = VERSION_PLAIN
        self._offset = 0  # of the file's end, when the buffers are written
        self._unsynced = 0
        self._file: File | None = None
        with self._leaving_nothing():
            self._file = disk.create(path + TEMPORARY)
        self._header = SegmentHeader(identity.feed_id, identity.partition, identity.segment_id)
        self._put(self._header.pack())

    def add(self, block: Block) -> None:
        """Writes a block behind the others.

        BadBlock if it is damaged, ValueError if it is of another partition or not within the rest of the run: nothing
        was written then. NoSpace, OSError: the segment has been abandoned.
        """
        assert self._file is not None, "the segment is finished"
        header = block.header
        if header.partition != self._identity.partition:
            raise ValueError(f"a block of partition {header.partition} for a segment of {self._identity.partition}")
        if not self._last_seq < header.first_seq <= header.last_seq <= self._identity.last_seq:
            raise ValueError(
                f"a block of seqs {header.first_seq} to {header.last_seq} is outside of the rest of the range, "
                f"({self._last_seq}, {self._identity.last_seq}]"
            )
        if self._totals.rows + header.rows > ROWS_MAX:
            raise ValueError(f"a segment has at most {ROWS_MAX} rows; begin another one")
        columns = _verified(block)
        self._hashes.append(np.array(np.frombuffer(columns.hash_buffer, "<u8")))
        self._entries.append((self._offset, header.first_seq, header.last_seq, block.nbytes, header.rows))
        self._last_seq = header.last_seq
        self._totals.add(columns)
        if header.flags & FLAG_TTLS:
            self._version = VERSION
        self._put(block.head, block.body)

    def settle(self, **changes: Any) -> None:
        """Sets members of the identity that are known only now: its branch, or a higher last seq. ValueError."""
        self._identity = self._identity._replace(**changes)
        self._identity.check()

    def finish(self) -> SegmentIdentity:
        """Writes the tables, makes the file durable and names it. Returns the identity with its counts.

        NoSpace, OSError: the segment has been abandoned.
        """
        assert self._file is not None, "the segment is finished"
        self._put_the_rest()
        with self._leaving_nothing():
            self._write()
            self._file.sync()
            self._file.close()
            self._disk.rename(self._path + TEMPORARY, self._path)
            try:
                self._disk.sync_directory(os.path.dirname(self._path))
            except OSError:
                with contextlib.suppress(OSError):  # whole, but no manifest will ever name it
                    self._disk.remove(self._path)
                raise
        self._file = None
        return self._totals.fill(self._identity)

    def abandon(self) -> None:
        """Removes the file; does nothing after ``finish``. May be called again."""
        file, self._file = self._file, None
        self._buffers.clear()
        self._hashes.clear()
        if file is not None:
            file.close()
            with contextlib.suppress(OSError):  # gone already, or the disk fails: the next start removes it
                self._disk.remove(self._path + TEMPORARY)

    def _put_the_rest(self) -> None:
        """Writes everything that comes behind the blocks."""
        if self._version != VERSION_PLAIN:
            self._change_version()
        table_offset = table_begin(self._offset)
        self._put(bytes(table_offset - self._offset))
        for pages in key_table.build(self._hashes):
            self._put(pages)
        index = BlockIndex.of(self._entries).pack()
        identity = self._totals.fill(self._identity).encode()
        index_offset = self._offset
        identity_offset = index_offset + len(index)
        trailer = Trailer(
            file_bytes=identity_offset + len(identity) + TRAILER_BYTES,
            table_offset=table_offset,
            index_offset=index_offset,
            identity_offset=identity_offset,
            pages=pages_of(self._totals.rows),
            blocks=len(self._entries),
            identity_bytes=len(identity),
            least_hash=self._totals.least_hash,
            greatest_hash=self._totals.greatest_hash,
            version=self._version,
        )
        self._put(index, identity, trailer.seal(index, identity))
        self._put(end_of(self._sum.intdigest(), self._version))
        assert self._offset == trailer.file_bytes

    def _change_version(self) -> None:
        """Writes the header anew: its version shows only when all blocks are there. The checksum has it, too."""
        with self._leaving_nothing():
            self._write()
            assert self._file is not None
            self._file.write_at(0, [self._header.pack(self._version)], HEADER_BYTES)
            self._sum = xxhash.xxh3_128()
            for begin in range(0, self._offset, WRITE_BYTES):
                self._sum.update(self._file.read_at(begin, min(WRITE_BYTES, self._offset - begin)))

    def _put(self, *buffers: Buffer) -> None:
        for buffer in buffers:
            self._sum.update(buffer)
            self._buffers.append(buffer)
            self._buffered += len(buffer)
            self._offset += len(buffer)
        if self._buffered >= WRITE_BYTES or len(self._buffers) >= _BUFFERS_MAX:
            with self._leaving_nothing():
                self._write()

    def _write(self) -> None:
        """Writes the gathered buffers."""
        assert self._file is not None
        if not self._buffers:
            return
        nbytes = self._buffered
        self._file.write_at(self._offset - nbytes, self._buffers, nbytes)
        self._buffers, self._buffered = [], 0
        self._unsynced += nbytes
        if self._unsynced >= SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0
        if self._on_bytes is not None:
            self._on_bytes(nbytes)

    @contextlib.contextmanager
    def _leaving_nothing(self) -> Iterator[None]:
        """Abandons the segment on an OSError. Raises NoSpace if the disk is full."""
        try:
            yield
        except OSError as error:
            self.abandon()
            raise_if_no_space(error, f"for the segment {self._path}")
            raise


def _verified(block: Block) -> Columns:
    """Returns the columns of a block whose checksums hold. BadBlock."""
    if BlockHeader.unpack(block.head) != block.header or sum_of(block.body) != block.header.body_sum:
        raise BadBlock(f"{block!r} changed in memory: its checksums don't hold any more")
    return block.open_columns()
