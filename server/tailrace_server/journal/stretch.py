"""Checks and reads neighbouring records of a journal file by columns: at a fraction of the cost of single records.

    window of the file ── read_stretch ──>  Stretch: all whole, good records from its beginning on
                                            heads         a column for each field of the records' headers
                                            block_heads   likewise of the blocks' headers

Records are found by the file's key, which each of them begins with, and have to follow each other without a gap. A
record that does not pass every check here is not rejected here: ``read_record`` (reader.py) decides, and tells the
reason. So both ways always agree on the end of the good records.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailrace.block import Block, BlockHeader
from tailrace.block.header import (
    BODY_BYTES_MAX,
    COMPRESS_BYTES_MIN,
    FLAG_COMPRESSED,
    FLAG_SEQS,
    FLAG_TIMESTAMPS,
    FLAG_TTLS,
    FLAGS_KNOWN,
    HEADER_BYTES,
    LZ4_RATIO_MAX,
    MAGIC,
    PARTITION_MAX,
    ROWS_MAX,
    SEQ_MAX,
    TIMESTAMP_MAX,
    VERSION,
    VERSION_TTLS,
    sum_of,
)
from tailrace_server.blocks.heads import HEAD_TYPE, Heads
from tailrace_server.journal.format import (
    FILE_HEADER_BYTES,
    KINDS,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    JournalHeader,
    RecordHeader,
    RecordKind,
    lsn,
    padded,
)
from tailrace_server.journal.published_record import PublishedRecord, open_published
from tailrace_server.journal.reader import BadRecord, RawRecord, Record, Window, read_record, record_of

if TYPE_CHECKING:
    from collections.abc import Sequence

# docs/formats/journal.md, "A record". A feed id is two numbers here, which compare faster than 16 bytes.
RECORD_TYPE = np.dtype(
    [
        ("file_key", "<u8"),
        ("file_number", "<u4"),
        ("offset", "<u4"),
        ("synced", "<u4"),
        ("length", "<u4"),
        ("covered", "<u4"),
        ("kind", "<u2"),
        ("reserved", "<u2"),
        ("partition", "<u4"),
        ("more_reserved", "<u4"),
        ("feed_low", "<u8"),
        ("feed_high", "<u8"),
        ("branch", "V16"),
        ("snapshot_first", "<u8"),
        ("snapshot_last", "<u8"),
        ("sum", "<u8"),
    ]
)
assert RECORD_TYPE.itemsize == RECORD_HEADER_BYTES

Records = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

_WORD = 8
_HEAD_WORDS = RECORD_HEADER_BYTES // _WORD
_BLOCK_HEAD_WORDS = HEADER_BYTES // _WORD
# A record's sum stands last in its header, and covers the rest of it.
_SUMMED_BYTES = RECORD_HEADER_BYTES - _WORD
# The bytes that the sum of a block's record covers: its own header but the sum, and the block's header.
_BLOCK_RECORD_WORDS = np.concatenate(
    (np.arange(_HEAD_WORDS - 1), np.arange(_HEAD_WORDS, _HEAD_WORDS + _BLOCK_HEAD_WORDS))
)
# Shorter bodies are copied to be summed, which takes less than making a view of each.
_COPIED_BYTES_MAX = 4_096

_CONTROLS = np.isin(
    np.arange(max(KINDS) + 1), [kind for kind in KINDS if kind not in (RecordKind.BLOCK, RecordKind.PUBLISHED)]
)
# The usual JSON of a publish: one sink, names of printable ASCII without escapes, numbers below 10^18, and a digest,
# which older clients do not send. JSON of any other form, such as of a batch in parts, is left to ``read_record``.
_USUAL_SINKS = re.compile(
    rb'\{"sinks":\{"[ !#-\[\]-~]{1,200}":\[(?:0|[1-9][0-9]{0,17}),"[ !#-\[\]-~]{0,200}",(?:0|[1-9][0-9]{0,17})'
    rb'(?:,"[0-9a-f]{16}")?\]\}\}'
)
_COUNTS_BYTES = 8


class Stretch:
    """Good records, one after the other; at least one.

    ``data`` begins with them; ``begin`` is its offset in the file, ``end`` that of the last record's end. ``starts``
    are their places in ``data``. ``block_heads`` has a header for each record that ``is_block`` marks, in the same
    row. For each that ``is_run`` marks, a publish with blocks, it has the last block's header, but with the first seq
    of all of them and without a producer. Its other rows mean nothing.
    """

    __slots__ = ("begin", "block_heads", "data", "end", "file", "heads", "is_block", "is_run", "starts")

    def __init__(
        self,
        file: JournalHeader,
        data: bytes,
        begin: int,
        starts: Indices,
        heads: Records,
        is_block: Bools,
        is_run: Bools,
        block_heads: Heads,
    ) -> None:
        self.file = file
        self.data = data
        self.begin = begin
        self.starts = starts
        self.heads = heads
        self.is_block = is_block
        self.is_run = is_run
        self.block_heads = block_heads
        last = heads[-1]
        self.end = begin + int(starts[-1]) + RECORD_HEADER_BYTES + padded(int(last["length"]))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def synced(self) -> int:
        """The greatest offset that any of the records says was durable."""
        return int(self.heads["synced"].max())

    @property
    def lsns(self) -> npt.NDArray[np.int64]:
        """The ends of all records, as `Record.lsn`."""
        lengths = self.heads["length"].astype("<i8")
        return lsn(self.file.number, self.begin + RECORD_HEADER_BYTES) + self.starts + ((lengths + 7) & ~7)

    def has(self, kind: RecordKind) -> bool:
        """Returns True if a record of this kind is among them."""
        return bool((self.heads["kind"] == kind).any())

    def block(self, index: int) -> Block:
        """Returns the block of a record that ``is_block`` marks; it holds its own bytes."""
        begin = int(self.starts[index]) + RECORD_HEADER_BYTES
        body = begin + HEADER_BYTES
        head = self.data[begin:body]
        return Block(BlockHeader.read(head), head, self.data[body : begin + int(self.heads["length"][index])])

    def published(self, index: int) -> PublishedRecord:
        """Returns the publish of a record that ``is_run`` marks; its blocks hold their own bytes."""
        begin, head = int(self.starts[index]) + RECORD_HEADER_BYTES, self.heads[index]
        return open_published(self.data[begin : begin + int(head["length"])], int(head["covered"]))

    def record(self, index: int) -> Record:
        """Returns one record in the form of `Records`; it holds its own bytes."""
        at = int(self.starts[index])
        header = RecordHeader.read(self.data, at)
        begin = at + RECORD_HEADER_BYTES
        payload, block = self.data[begin : begin + header.length], None
        if self.is_block[index]:
            head = payload[:HEADER_BYTES]
            block = Block(BlockHeader.read(head), head, payload[HEADER_BYTES:])
        return record_of(RawRecord(header, payload, block))


def read_stretch(window: Window, file: JournalHeader, begin: int, end: int) -> Stretch | None:
    """Returns the good records from ``begin`` on, as many as one read of the file gives, up to ``end`` at most.

    Returns None if the record at ``begin`` is bad, or too large for one read; ``read_record`` tells which.
    Raises JournalDamaged if the disk cannot read.
    """
    data = window.load(begin)
    words = np.frombuffer(data, "<u8", min(len(data), end - begin) // _WORD)
    starts = np.flatnonzero(words[: max(len(words) - _HEAD_WORDS + 1, 0)] == file.key)
    heads = _records_at(words, starts, _HEAD_WORDS, RECORD_TYPE)
    lengths = heads["length"].astype(np.intp)
    ends = starts + _HEAD_WORDS + (lengths + _WORD - 1) // _WORD
    offsets = begin + starts * _WORD
    follows = ends <= len(words)
    follows &= starts == np.concatenate(([0], ends))[: len(starts)]
    follows &= (heads["file_number"] == file.number) & (heads["offset"] == offsets)
    follows &= (heads["reserved"] == 0) & (heads["more_reserved"] == 0)
    follows &= (heads["synced"] >= FILE_HEADER_BYTES) & (heads["synced"] <= offsets)
    follows &= (heads["covered"] <= lengths) & (lengths <= PAYLOAD_BYTES_MAX)
    count = _leading(follows)
    starts, ends, heads = starts[:count], ends[:count], heads[:count]
    is_block = (heads["kind"] == RecordKind.BLOCK) & (heads["length"] >= HEADER_BYTES)
    block_heads = np.zeros(count, HEAD_TYPE)
    block_heads[is_block] = _records_at(words, starts[is_block] + _HEAD_WORDS, _BLOCK_HEAD_WORDS, HEAD_TYPE)
    good = _good_blocks(data, words, starts, heads, is_block, block_heads)
    good |= _good_controls(data, starts, heads)
    is_run = _good_published(data, words, starts, heads, block_heads)
    good |= is_run
    good &= _good_padding(words, ends, heads)
    for index in np.flatnonzero(~good).tolist():
        try:
            read_record(window, file, begin + int(starts[index]) * _WORD, end)
        except BadRecord:
            count = index
            break
    if not count:
        return None
    columns = (heads[:count], is_block[:count], is_run[:count], block_heads[:count])
    return Stretch(file, data, begin, starts[:count] * _WORD, *columns)


def moved(stretch: Stretch, file: JournalHeader, offset: int) -> bytearray:
    """Returns all records as they are in another file, ``file``, from ``offset`` on: with its key, and new sums.

    Their ``synced`` says that only the file's header is known to be durable.
    """
    heads = stretch.heads.copy()
    heads["file_key"], heads["file_number"], heads["synced"] = file.key, file.number, FILE_HEADER_BYTES
    heads["offset"] = offset + stretch.starts
    written = heads.tobytes()
    begins = stretch.starts + RECORD_HEADER_BYTES
    spans = zip(
        range(0, len(written), RECORD_HEADER_BYTES),
        begins.tolist(),
        (begins + heads["covered"]).tolist(),
        strict=True,
    )
    heads["sum"] = _sums([written[at : at + _SUMMED_BYTES] + stretch.data[a:b] for at, a, b in spans])
    data = bytearray(stretch.data[: stretch.end - stretch.begin])
    words = np.frombuffer(data, "<u8")
    words[stretch.starts[:, None] // _WORD + np.arange(_HEAD_WORDS)] = heads.view("<u8").reshape(-1, _HEAD_WORDS)
    return data


def _leading(flags: Bools) -> int:
    """Returns the number of set ``flags`` before the first one that is not set."""
    return len(flags) if flags.all() else int(flags.argmin())


def _records_at(words: Words, starts: Indices, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns the structures of ``dtype``, each of whole words, that begin at ``starts``."""
    records: npt.NDArray[Any] = words[starts[:, None] + np.arange(count)].view(dtype).reshape(-1)
    return records


def _strings_at(words: Words, starts: Indices, places: Indices) -> list[bytes]:
    """Returns for each of ``starts`` the words at ``places`` from there on, as one string."""
    strings: list[bytes] = words[starts[:, None] + places].view(f"V{len(places) * _WORD}").reshape(-1).tolist()
    return strings


def _sums(strings: Sequence[bytes | memoryview]) -> Words:
    return np.fromiter(map(sum_of, strings), "<u8", len(strings))


def _good_blocks(
    data: bytes, words: Words, starts: Indices, heads: Records, is_block: Bools, block_heads: Heads
) -> Bools:
    """Marks the records that are blocks and pass every check: of the record, the block's header, and its body."""
    good: Bools = is_block & (heads["covered"] == HEADER_BYTES)
    good &= heads["length"] == HEADER_BYTES + block_heads["stored_bytes"].astype("<i8")
    good &= _good_bounds(block_heads)
    picked = np.flatnonzero(good)
    if not len(picked):
        return good
    starts, heads, block_heads = starts[picked], heads[picked], block_heads[picked]
    sums = _sums(_strings_at(words, starts, _BLOCK_RECORD_WORDS))
    bodies = starts * _WORD + RECORD_HEADER_BYTES + HEADER_BYTES
    good[picked] = (sums == heads["sum"]) & _good_block_sums(data, words, starts + _HEAD_WORDS, bodies, block_heads)
    return good


def _good_block_sums(data: bytes, words: Words, places: Indices, bodies: Indices, block_heads: Heads) -> Bools:
    """Marks the blocks, with headers at the words ``places`` and bodies at the bytes ``bodies``, with right sums."""
    head_sums = _sums(_strings_at(words, places, np.arange(_BLOCK_HEAD_WORDS - 1)))
    stored = block_heads["stored_bytes"].astype(np.intp)
    source = data if int(stored.max()) <= _COPIED_BYTES_MAX else memoryview(data)
    body_sums = _sums([source[a:b] for a, b in zip(bodies.tolist(), (bodies + stored).tolist(), strict=True)])
    good: Bools = (head_sums == block_heads["head_sum"]) & (body_sums == block_heads["body_sum"])
    return good


def _good_published(data: bytes, words: Words, starts: Indices, heads: Records, block_heads: Heads) -> Bools:
    """Marks the publishes with blocks that pass every check, and fills their rows of ``block_heads``.

    A publish with unusual JSON is left to ``read_record``.
    """
    good: Bools = (heads["kind"] == RecordKind.PUBLISHED) & (heads["length"] >= _COUNTS_BYTES)
    picked = np.flatnonzero(good)
    if not len(picked):
        return good
    payloads, covered = starts[picked] + _HEAD_WORDS, heads["covered"][picked].astype(np.intp)
    counts = (words[payloads] >> np.uint64(32)).astype(np.intp)
    texts = (words[payloads] & np.uint64(0xFFFFFFFF)).astype(np.intp)
    before = (_COUNTS_BYTES + texts + _WORD - 1) // _WORD * _WORD  # the bytes before the blocks' headers
    fits = (counts >= 1) & (before + counts * HEADER_BYTES == covered)
    good[picked[~fits]] = False
    columns = (picked, payloads, covered, counts, texts, before)
    picked, payloads, covered, counts, texts, before = (column[fits] for column in columns)
    if not len(picked):
        return good
    lasts = np.cumsum(counts) - 1
    firsts = lasts - counts + 1
    within = np.arange(int(lasts[-1]) + 1) - np.repeat(firsts, counts)
    places = np.repeat(payloads + before // _WORD, counts) + within * _BLOCK_HEAD_WORDS
    found = _records_at(words, places, _BLOCK_HEAD_WORDS, HEAD_TYPE)
    stored = found["stored_bytes"].astype(np.intp)
    filled = np.cumsum(stored)
    bodies = np.repeat(payloads * _WORD + covered - (filled - stored)[firsts], counts) + filled - stored
    right = np.logical_and.reduceat(_good_bounds(found), firsts)
    right &= covered + np.add.reduceat(stored, firsts) == heads["length"][picked]
    follows = np.ones(len(found), np.bool_)
    follows[1:] = found["first_seq"][1:] == found["last_seq"][:-1] + np.uint64(1)
    follows[firsts] = True
    right &= np.logical_and.reduceat(follows, firsts)
    places_of = zip(*(column[right].tolist() for column in (payloads * _WORD, covered, texts, before)), strict=True)
    told = heads["sum"][picked[right]].tolist()
    right[right] = [
        sum_of(data[begin - RECORD_HEADER_BYTES : begin - _WORD] + data[begin : begin + size]) == sum_
        and _is_usual_text(data, begin + _COUNTS_BYTES, begin + _COUNTS_BYTES + text_bytes, begin + all_before)
        for (begin, size, text_bytes, all_before), sum_ in zip(places_of, told, strict=True)
    ]
    of_right = np.repeat(right, counts)
    if right.any():
        sums = np.ones(len(found), np.bool_)
        sums[of_right] = _good_block_sums(data, words, places[of_right], bodies[of_right], found[of_right])
        right &= np.logical_and.reduceat(sums, firsts)
    good[picked] = right
    picked, firsts, lasts = picked[right], firsts[right], lasts[right]
    rows = found[lasts]
    rows["first_seq"], rows["producer_id"], rows["flags"] = found["first_seq"][firsts], 0, FLAG_SEQS
    block_heads[picked] = rows
    return good


def _is_usual_text(data: bytes, begin: int, end: int, padded_end: int) -> bool:
    """Returns True for JSON of the usual form from ``begin`` to ``end``, and zeros behind, to ``padded_end``."""
    return _USUAL_SINKS.fullmatch(data, begin, end) is not None and not any(data[end:padded_end])


def _good_bounds(heads: Heads) -> Bools:
    """Marks the headers of blocks within the bounds that `BlockHeader.unpack` checks."""
    flags, rows = heads["flags"], heads["rows"]
    stored, raw = heads["stored_bytes"].astype("<u8"), heads["raw_bytes"].astype("<u8")
    first, last = heads["first_seq"], heads["last_seq"]
    good: Bools = (heads["magic"] == MAGIC) & (heads["reserved"] == 0)
    has_ttls = (flags & FLAG_TTLS) != 0
    good &= heads["version"] == np.where(has_ttls, VERSION_TTLS, VERSION)
    good &= (flags & ~np.uint16(FLAGS_KNOWN | FLAG_TTLS)) == 0
    good &= (rows >= 1) & (rows <= ROWS_MAX) & (heads["partition"] <= PARTITION_MAX)
    good &= (heads["least_hash"] <= heads["greatest_hash"]) & (raw <= BODY_BYTES_MAX)
    is_packed = (flags & FLAG_COMPRESSED) != 0
    packed_well = (raw >= COMPRESS_BYTES_MIN) & (stored < raw) & (raw <= stored * np.uint64(LZ4_RATIO_MAX))
    good &= np.where(is_packed, packed_well, stored == raw)
    good &= (heads["timestamp"] <= TIMESTAMP_MAX) & (last <= SEQ_MAX)
    seqs = last - first + np.uint64(1)  # of a block with seqs: these are below 2^63, and rise
    enough = np.where((flags & FLAG_SEQS) != 0, seqs >= rows, seqs == rows)
    has_seqs = (first >= 1) & (first <= last) & enough
    has_none = (first == 0) & (last == 0) & ((flags & (FLAG_SEQS | FLAG_TIMESTAMPS)) == 0)
    good &= has_seqs | has_none
    return good


def _good_controls(data: bytes, starts: Indices, heads: Records) -> Bools:
    """Marks the records of other known kinds than blocks and publishes, covered whole by a right sum."""
    good: Bools = _CONTROLS[np.minimum(heads["kind"], len(_CONTROLS) - 1)] & (heads["kind"] < len(_CONTROLS))
    good &= heads["covered"] == heads["length"]
    picked = np.flatnonzero(good)
    if len(picked):
        begins = starts[picked] * _WORD
        ends = begins + RECORD_HEADER_BYTES + heads["length"][picked]
        strings = [
            data[a : a + _SUMMED_BYTES] + data[a + RECORD_HEADER_BYTES : b]
            for a, b in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        good[picked] = _sums(strings) == heads["sum"][picked]
    return good


def _good_padding(words: Words, ends: Indices, heads: Records) -> Bools:
    """Marks the records with only zeros between their payload and the next multiple of 8."""
    used = (heads["length"] % _WORD).astype("<u8")
    good: Bools = (used == 0) | (words[ends - 1] >> (used * np.uint64(8)) == 0)
    return good
