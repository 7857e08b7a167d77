"""A block: its header and its stored body. It does not change; what seems to change it makes another one."""

from __future__ import annotations

import lz4.block

from tailrace.block.check import check_columns
from tailrace.block.columns import Columns
from tailrace.block.header import (
    FLAG_COMPRESSED,
    FLAG_SEQS,
    FLAG_TIMESTAMPS,
    HEADER_BYTES,
    BlockHeader,
    producer_of,
    seqs_of,
    stamped_head,
    sum_of,
)
from tailrace.block.layout import read_layout
from tailrace.block.row_layout import is_usual_row, usual_key_begins_with, usual_row_layout
from tailrace.errors import BadBlock


class Block:
    """An immutable block.

    ``header`` has the fields of the header, ``head`` its 96 bytes, ``body`` the stored body, compressed or not, never
    copied: a block parsed from a buffer keeps that whole buffer alive, and the buffer must not change.
    """

    __slots__ = ("_checked", "_columns", "body", "head", "header")
    header: BlockHeader

    def __init__(self, header: BlockHeader, head: bytes, body: bytes | memoryview, *, is_checked: bool = False) -> None:
        """Joins parts that are known to belong together. Other callers parse or encode.

        ``is_checked``: the columns are known to keep the format.
        """
        self.header = header
        self.head = head
        self.body = body
        self._columns: Columns | None = None
        self._checked = is_checked

    @classmethod
    def parse(cls, data: bytes | memoryview) -> Block:
        """Returns the block that ``data`` is, whole. BadBlock for a broken header, a wrong length or a wrong checksum.

        The columns inside are checked by ``columns``.
        """
        view = memoryview(data)
        header = BlockHeader.unpack(view)
        nbytes = HEADER_BYTES + header.stored_bytes
        if nbytes < view.nbytes:
            raise BadBlock(f"a block of {nbytes} bytes was expected, here are {view.nbytes}")
        return cls._of(header, view, nbytes)

    @classmethod
    def parse_at(cls, data: bytes | memoryview, offset: int) -> Block:
        """Parses the block at byte ``offset`` of ``data``, which may go on behind it; BadBlock as ``parse``."""
        view = memoryview(data)[offset:]
        header = BlockHeader.unpack(view)
        return cls._of(header, view, HEADER_BYTES + header.stored_bytes)

    @classmethod
    def _of(cls, header: BlockHeader, view: memoryview, nbytes: int) -> Block:
        """Returns the block of ``header`` in the first ``nbytes`` of ``view``, if these are its body."""
        body = view[HEADER_BYTES:nbytes]
        if HEADER_BYTES + body.nbytes != nbytes:
            raise BadBlock(f"a block of {nbytes} bytes was expected, here are only {view.nbytes}")
        found = sum_of(body)
        if found != header.body_sum:
            raise BadBlock(f"the body's checksum is {found:016x}, the header says {header.body_sum:016x}")
        return cls(header, bytes(view[:HEADER_BYTES]), body)

    def forget_header(self) -> None:
        """Frees what ``header`` takes, more than a small block does: who asks for it gets it from ``head`` anew."""
        try:  # noqa: SIM105 - each block of a tree comes here
            del self.header
        except AttributeError:
            pass

    def __getattr__(self, name: str) -> BlockHeader:
        """Returns the header of a block that has forgotten it."""
        if name != "header":
            raise AttributeError(f"a block has no attribute {name!r}", name=name, obj=self)
        return BlockHeader.read(self.head)

    @property
    def seqs(self) -> tuple[int, int]:
        """First and last seq, without a look at the rest of the header."""
        return seqs_of(self.head)

    @property
    def producer_id(self) -> int:
        """The id of its producer, without a look at the rest of the header; 0 if it names none."""
        return producer_of(self.head)

    @property
    def nbytes(self) -> int:
        """The length of the whole block."""
        return HEADER_BYTES + len(self.body)

    @property
    def rows(self) -> int:
        """How many mutations it holds."""
        return self.header.rows

    def stamped(self, first_seq: int, timestamp: int) -> Block:
        """Stamps a copy with seqs from ``first_seq`` on, one a row, and the timestamp (microseconds since 1970 UTC).

        The body stays the same object. ValueError for a block that brings its own seqs or timestamps, or a seq below 1.
        """
        header = self.header
        if header.flags & (FLAG_SEQS | FLAG_TIMESTAMPS):
            raise ValueError("a block with columns of seqs or timestamps has its numbers already")
        if first_seq < 1:
            raise ValueError(f"seqs begin at 1, not at {first_seq}")
        last_seq = first_seq + header.rows - 1
        # The fields in their order: ``_replace`` takes four times as long.
        fields = (*header[:3], first_seq, last_seq, timestamp, *header[6:])
        head = stamped_head(self.head, first_seq, last_seq, timestamp)
        return self._with(tuple.__new__(BlockHeader, fields), head)

    def numbered(self, producer_id: int, producer_seq: int) -> Block:
        """Returns this block with another number of its producer, for a resend."""
        header = self.header._replace(producer_id=producer_id, producer_seq=producer_seq)
        return self._with(header, header.pack())

    def tobytes(self) -> bytes:
        """Returns the whole block as one string of bytes."""
        return b"".join((self.head, self.body))

    def columns(self) -> Columns:
        """Returns the columns, decompressed and checked once, and kept. BadBlock if they break the format.

        A compressed block then holds its raw body too; ``open_columns`` does not keep it.
        """
        if self._columns is None:
            self._columns = self.open_columns()
        return self._columns

    def open_columns(self) -> Columns:
        """Opens the columns as ``columns`` does, without keeping them. They are checked at the first call only."""
        if self._columns is not None:
            return self._columns
        header = self.header
        raw = memoryview(self._raw_body() if header.flags & FLAG_COMPRESSED else self.body)
        layout = usual_row_layout(header, raw) if header.rows == 1 else None
        if layout is None:
            layout = read_layout(header, raw)
            if not self._checked:
                check_columns(header, layout, raw)
        self._checked = True
        return Columns(header, layout, raw)

    def open_raw(self) -> bytes | memoryview:
        """Returns the raw body, whose columns are checked at the first call only, as by ``open_columns``."""
        if not self.header.flags & FLAG_COMPRESSED:
            self.check_columns()
            return self.body
        if self._columns is not None or not self._checked:
            return self.open_columns().raw
        return self._raw_body()

    def check_columns(self, *, keep: bool = False) -> None:
        """Checks the columns once, as ``open_columns`` does; most single rows are checked without being opened.

        ``keep``: columns that have to be opened are kept, as by ``columns``.
        """
        if self._checked:
            return
        header = self.header
        if header.rows == 1 and not header.flags and is_usual_row(header, self.body):
            self._checked = True
        elif keep:
            self.columns()
        else:
            self.open_columns()

    def only_key_begins_with(self, prefix: bytes) -> bool | None:
        """Returns whether the key of a usual single row begins with ``prefix``, by one look that checks the row, too.

        None for all other blocks, which have to be opened.
        """
        header = self.header
        if header.rows != 1 or header.flags or not is_usual_row(header, self.body):
            return None
        self._checked = True
        return usual_key_begins_with(self.body, prefix)

    def _raw_body(self) -> bytes:
        """Decompresses a body. BadBlock if it is not lz4, or not of its length."""
        header = self.header
        try:
            raw: bytes = lz4.block.decompress(self.body, uncompressed_size=header.raw_bytes)
        except lz4.block.LZ4BlockError as error:
            raise BadBlock(f"the body is no lz4 of {header.raw_bytes} bytes: {error}") from None
        if len(raw) != header.raw_bytes:
            raise BadBlock(f"the body decompresses to {len(raw)} bytes, the header says {header.raw_bytes}")
        return raw

    def _with(self, header: BlockHeader, head: bytes) -> Block:
        """Puts the same body under another header.

        Checked stays checked, unless columns have to agree with what changes.
        """
        block = Block(header, head, self.body)
        block._checked = self._checked and not header.flags & (FLAG_SEQS | FLAG_TIMESTAMPS)
        return block

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Block):
            return NotImplemented
        return self.head == other.head and self.body == other.body

    def __hash__(self) -> int:
        return hash(self.head)

    def __repr__(self) -> str:
        header = self.header
        return (
            f"<Block of partition {header.partition}: {header.rows} rows, "
            f"seqs {header.first_seq} to {header.last_seq}, {self.nbytes} bytes>"
        )
