"""The header of a block: 96 bytes that say all that a server needs to order, route, check and forward the block.

     0  magic "TRBK", version u16, flags u16        48  producer seq u32, stored bytes u32
     8  rows u32, partition u32                     56  raw bytes u32, reserved u32 (zero)
    16  first seq u64, last seq u64                 64  least and greatest key hash, u64 each
    32  timestamp u64, producer id u64              80  sum of the stored body u64, sum of bytes 0 to 87 u64

All integers are little-endian; both sums are XXH3-64 with seed 0.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

import xxhash

from tailrace.errors import BadBlock

HEADER_BYTES = 96
MAGIC = b"TRBK"
VERSION = 1
VERSION_TTLS = 2  # of a block with FLAG_TTLS, and of no other: a program that knows version 1 refuses it

FLAG_COMPRESSED = 1  # the stored body is lz4 of the raw one
FLAG_SEQS = 2  # the body has a column of seqs: they are not dense
FLAG_TIMESTAMPS = 4  # the body has a column of timestamps: rows were stamped at different times
FLAG_TOMBSTONES = 8  # the body has a bitmap of the values that are there: at least one is not
FLAG_TTLS = 16  # the body has a column of ttls: at least one row has a ttl, or is an expiry
FLAGS_KNOWN = FLAG_COMPRESSED | FLAG_SEQS | FLAG_TIMESTAMPS | FLAG_TOMBSTONES  # of version 1

KEY_BYTES_MAX = 4_096  # an index keeps whole keys, and they are compared where hashes are equal
VALUE_BYTES_MAX = 16 * 1024 * 1024  # half a body, so that a value of any permitted size fits into a block
BODY_BYTES_MAX = 32 * 1024 * 1024  # what one hostile header can make a reader allocate
ROWS_MAX = 65_536  # bounds the lists that one block becomes
COMPRESS_BYTES_MIN = 256  # below, lz4 saves less than it costs
LZ4_RATIO_MAX = 255  # a byte of lz4 stands for at most 255 bytes, so a greater ratio cannot be meant
PARTITION_MAX = 2**31 - 1  # partitions, seqs and timestamps are signed in Arrow and in Spark
SEQ_MAX = 2**63 - 1
TTL_S_MAX = 10 * 365 * 86_400  # ten years
EXPIRED = 1  # in the column of ttls, for a tombstone: its key has expired, and was not deleted by a writer
TIMESTAMP_MAX = 2**63 - 1

assert VALUE_BYTES_MAX + KEY_BYTES_MAX + HEADER_BYTES < BODY_BYTES_MAX
assert ROWS_MAX * (8 + 8 + 8 + 4 + 4 + 4 + 1) + 64 < BODY_BYTES_MAX

_VERSIONS = (VERSION, VERSION_TTLS)
_FIELDS = struct.Struct("<4sHHIIQQQQIIIIQQQ")
_WHOLE = struct.Struct(_FIELDS.format + "Q")
_SUMMED_BYTES = _FIELDS.size
assert _WHOLE.size == HEADER_BYTES

sum_of = xxhash.xxh3_64_intdigest  # the checksum of formats: XXH3-64 with seed 0
_digest_of = xxhash.xxh3_64_digest  # the same as 8 bytes, the highest first

_SEQS = struct.Struct("<QQ")
_STAMP = struct.Struct("<QQQ")  # both seqs and the timestamp
_SEQS_OFFSET = 16
_BEHIND_STAMP = _SEQS_OFFSET + _STAMP.size
_PRODUCER = struct.Struct("<Q")  # right behind the stamp


class BlockHeader(NamedTuple):
    """The fields of the header. `pack` and `unpack` handle magic, version, the reserved field and the header's own sum.

    ``first_seq`` and ``last_seq`` are the seqs of the first and the last row, both 0 before the server gave them;
    ``timestamp`` is in microseconds since 1970 UTC, the greatest of the rows; ``least_hash`` and ``greatest_hash`` are
    those of the keys; ``body_sum`` is XXH3-64 of the stored body.
    """

    flags: int
    rows: int
    partition: int
    first_seq: int
    last_seq: int
    timestamp: int
    producer_id: int
    producer_seq: int
    stored_bytes: int
    raw_bytes: int
    least_hash: int
    greatest_hash: int
    body_sum: int

    def pack(self) -> bytes:
        """Returns the 96 bytes, with their sum. ValueError if a number does not fit into its field."""
        try:
            version = VERSION_TTLS if self[0] & FLAG_TTLS else VERSION
            fields = _FIELDS.pack(MAGIC, version, *self[:10], 0, *self[10:])
        except struct.error as error:
            raise ValueError(f"a field of {self} does not fit into a block's header: {error}") from None
        return fields + _digest_of(fields)[::-1]

    @classmethod
    def unpack(cls, buffer: bytes | memoryview) -> BlockHeader:
        """Reads the header at the beginning of ``buffer``, which may be longer. BadBlock if it breaks the format."""
        view = memoryview(buffer)
        if view.nbytes < HEADER_BYTES:
            raise BadBlock(f"a block's header has {HEADER_BYTES} bytes, here are only {view.nbytes}")
        # fmt: off
        (
            magic, version, flags, rows, partition, first_seq, last_seq, timestamp, producer_id, producer_seq,
            stored_bytes, raw_bytes, reserved, least_hash, greatest_hash, body_sum, claimed,
        ) = _WHOLE.unpack_from(view)
        # fmt: on
        if magic != MAGIC:
            raise BadBlock(f"a block begins with {MAGIC!r}, this is {magic!r}")
        if version not in _VERSIONS:
            raise BadBlock(
                f"this is a block of version {version}, this program reads versions {VERSION} to {VERSION_TTLS}"
            )
        found = sum_of(view[:_SUMMED_BYTES])
        if found != claimed:
            raise BadBlock(f"the header's checksum is {found:016x}, it says {claimed:016x}: it is damaged")
        if reserved:
            raise BadBlock(f"the header's reserved field is {reserved}, it must be zero")
        if flags & ~FLAGS_KNOWN or version != VERSION:
            _check_flags(version, flags)
        if not 1 <= rows <= ROWS_MAX:
            raise BadBlock(f"a block has 1 to {ROWS_MAX} rows, this one says {rows}")
        if partition > PARTITION_MAX:
            raise BadBlock(f"partition {partition} is above {PARTITION_MAX}")
        if least_hash > greatest_hash:
            raise BadBlock(f"the least key hash {least_hash} is above the greatest, {greatest_hash}")
        if flags & FLAG_COMPRESSED or stored_bytes != raw_bytes or raw_bytes > BODY_BYTES_MAX:
            _check_sizes(flags, stored_bytes, raw_bytes)
        if timestamp > TIMESTAMP_MAX or last_seq > SEQ_MAX:
            raise BadBlock(f"seq {last_seq} or timestamp {timestamp} is above {SEQ_MAX}")
        if last_seq or first_seq or flags & (FLAG_SEQS | FLAG_TIMESTAMPS):
            _check_seqs(flags, rows, first_seq, last_seq)
        fields = (
            flags, rows, partition, first_seq, last_seq, timestamp, producer_id, producer_seq,
            stored_bytes, raw_bytes, least_hash, greatest_hash, body_sum,
        )  # fmt: skip
        return tuple.__new__(cls, fields)  # the class's own constructor takes twice as long

    @classmethod
    def read(cls, head: bytes) -> BlockHeader:
        """Returns what ``head`` says, which was packed or unpacked before: nothing is checked."""
        fields = _WHOLE.unpack(head)
        return tuple.__new__(cls, fields[2:12] + fields[13:16])


def packed_row_header(
    flags: int, partition: int, producer_id: int, producer_seq: int, hash_: int, stored: bytes, raw_bytes: int
) -> bytes:
    """Returns the packed header of a block of one row without a seq, whose stored body is ``stored``."""
    numbers = MAGIC, VERSION, flags, 1, partition, 0, 0, 0, producer_id, producer_seq, len(stored), raw_bytes, 0
    fields = _FIELDS.pack(*numbers, hash_, hash_, sum_of(stored))
    return fields + _digest_of(fields)[::-1]


def stamped_head(head: bytes, first_seq: int, last_seq: int, timestamp: int) -> bytes:
    """Returns a packed header with these seqs and this timestamp in the place of its own.

    ValueError if one of them does not fit into its field.
    """
    try:
        stamp = _STAMP.pack(first_seq, last_seq, timestamp)
    except struct.error as error:
        raise ValueError(
            f"seqs {first_seq} to {last_seq} or timestamp {timestamp} do not fit into a block's header: {error}"
        ) from None
    fields = head[:_SEQS_OFFSET] + stamp + head[_BEHIND_STAMP:_SUMMED_BYTES]
    return fields + _digest_of(fields)[::-1]


def seqs_of(head: bytes) -> tuple[int, int]:
    """Returns the first and last seq of a packed header."""
    first_seq, last_seq = _SEQS.unpack_from(head, _SEQS_OFFSET)
    return first_seq, last_seq


class HasHead(Protocol):
    """An object with a packed header, such as a block."""

    @property
    def head(self) -> bytes: ...


def first_seq_of(block: HasHead) -> int:
    """Returns the first seq of a block, as a key of a search among many: it takes one call of Python."""
    found: int = _PRODUCER.unpack_from(block.head, _SEQS_OFFSET)[0]
    return found


def last_seq_of(block: HasHead) -> int:
    """Returns the last seq of a block, as `first_seq_of`."""
    found: int = _PRODUCER.unpack_from(block.head, _SEQS_OFFSET + _PRODUCER.size)[0]
    return found


def _check_flags(version: int, flags: int) -> None:
    """Checks the flags of a block that has others than those of version 1, or another version. BadBlock."""
    if flags & ~(FLAGS_KNOWN | FLAG_TTLS) or (flags & FLAG_TTLS and version != VERSION_TTLS):
        raise BadBlock(f"the flags {flags:#06x} have bits that version {version} does not know")
    if not flags & FLAG_TTLS:
        raise BadBlock(f"a block of version {version} has ttls, the flags {flags:#06x} say none")


def producer_of(head: bytes) -> int:
    """Returns the producer id of a packed header."""
    found: int = _PRODUCER.unpack_from(head, _BEHIND_STAMP)[0]
    return found


def _check_sizes(flags: int, stored: int, raw: int) -> None:
    """Checks that stored and raw length are within bounds, and one of them believable for the other. BadBlock."""
    if raw > BODY_BYTES_MAX:
        raise BadBlock(f"a body has at most {BODY_BYTES_MAX} bytes, this one says {raw}")
    if not flags & FLAG_COMPRESSED:
        if stored != raw:
            raise BadBlock(f"the body is not compressed, but says {stored} bytes stored for {raw} raw ones")
    elif raw < COMPRESS_BYTES_MIN or stored >= raw:
        raise BadBlock(f"a body of {raw} bytes is never stored compressed as {stored}")
    elif raw > stored * LZ4_RATIO_MAX:
        raise BadBlock(f"{stored} bytes of lz4 cannot hold {raw}")


def _check_seqs(flags: int, rows: int, first: int, last: int) -> None:
    """Checks seqs: not given yet, or a seq for each row, or more if the body has a column of them."""
    if first == last == 0:
        if flags & (FLAG_SEQS | FLAG_TIMESTAMPS):
            raise BadBlock("a block with a column of seqs or timestamps must say its first and last seq")
        return
    seqs = last - first + 1
    enough = seqs >= rows if flags & FLAG_SEQS else seqs == rows
    if first == 0 or not enough:
        raise BadBlock(f"seqs {first} to {last} do not fit a block of {rows} rows")
