from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.journal.format import (
    FILE_HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    JournalFormatError,
    JournalHeader,
    RecordKind,
    check_sum,
    file_name,
    file_number,
    lsn,
    pack_record,
    padded,
    split_lsn,
    unpack_record,
)

FILE = JournalHeader(number=3, key=0x1122334455667788, previous_end=4096, synced=64)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def record(file=FILE, offset=128, synced=64, length=5, payload=b"hello", **changes):
    fields = {
        "kind": RecordKind.FLUSHED,
        "partition": 7,
        "feed_id": b"F" * 16,
        "branch": bytes(16),
        "snapshot": (0, 0),
    }
    fields |= changes
    return pack_record(file.key, file.number, offset, synced, length, covered=payload, **fields)


def check_whole(header, payload):
    unpack_record(header, FILE, 128)
    check_sum(header, payload)


def test_a_file_header_comes_back():
    data = FILE.pack()
    assert len(data) == FILE_HEADER_BYTES
    assert JournalHeader.unpack(data) == FILE


def test_every_flipped_bit_of_a_file_header_is_refused():
    data = FILE.pack()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(JournalFormatError):
            JournalHeader.unpack(bytes(changed))


def test_another_version_is_named():
    data = bytearray(FILE.pack())
    data[4] = 9
    with pytest.raises(JournalFormatError, match="has version 9 of the journal; this Tailrace knows versions up to 2"):
        JournalHeader.unpack(bytes(data))


@pytest.mark.parametrize(
    "header",
    [
        FILE._replace(number=1),  # the first file has none before it
        FILE._replace(previous_end=0),  # and every other one has
        FILE._replace(previous_end=63),
        FILE._replace(synced=63),
    ],
)
def test_impossible_ends_in_a_file_header_are_refused(header):
    with pytest.raises(JournalFormatError, match="ends that can't be"):
        JournalHeader.unpack(header.pack())


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_file_header_or_a_format_error(data):
    with pytest.raises(JournalFormatError):
        JournalHeader.unpack(data)


@given(
    synced=st.integers(64, 128),
    kind=st.integers(0, 2**16 - 1),
    partition=U32,
    feed_id=st.binary(min_size=16, max_size=16),
    branch=st.binary(min_size=16, max_size=16),
    snapshot=st.tuples(U64, U64),
    payload=st.binary(max_size=300),
    more=st.integers(0, PAYLOAD_BYTES_MAX - 300),
)
def test_a_record_header_comes_back(synced, kind, partition, feed_id, branch, snapshot, payload, more):
    length = len(payload) + more
    data = record(
        synced=synced,
        length=length,
        payload=payload,
        kind=kind,
        partition=partition,
        feed_id=feed_id,
        branch=branch,
        snapshot=snapshot,
    )
    assert len(data) == RECORD_HEADER_BYTES
    header = unpack_record(data, FILE, 128)
    check_sum(data, payload)
    assert header == (
        FILE.key, 3, 128, synced, length, len(payload), kind, partition, feed_id, branch, *snapshot
    )  # fmt: skip
    assert header.end == 128 + 96 + padded(length)
    assert header.end % 8 == 0


def test_every_flipped_bit_of_a_record_is_refused():
    data = record() + b"hello"
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(JournalFormatError):
            check_whole(bytes(changed[:96]), bytes(changed[96:]))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (record()[:95], "ends inside a record's header, after 95"),
        (record(FILE._replace(key=1)), "no record of this file"),
        (record(FILE._replace(number=4)), "no record of this file"),
        (record(offset=136), "no record of this file"),
        (record(synced=136), "synced up to 136, and stands at 128"),
        (record(synced=63), "synced up to 63"),
        (record(length=4), "payload of 4 bytes with 5 covered"),
        (record(length=PAYLOAD_BYTES_MAX + 1), "out of bounds"),
        (bytes(96), "no record of this file"),
    ],
)
def test_a_header_that_cannot_be_is_refused(data, why):
    with pytest.raises(JournalFormatError, match=why):
        unpack_record(data, FILE, 128)


@pytest.mark.parametrize("offset", [6, 28, 55])
def test_reserved_fields_of_a_file_header_are_zero(offset):
    data = bytearray(FILE.pack()[:56])
    data[offset] ^= 1
    with pytest.raises(JournalFormatError, match="reserved"):
        JournalHeader.unpack(bytes(data) + xxhash.xxh3_64_intdigest(bytes(data)).to_bytes(8, "little"))


def test_reserved_fields_of_a_record_are_zero():
    for offset in (30, 36):
        data = bytearray(record())
        data[offset] = 1
        with pytest.raises(JournalFormatError, match="reserved"):
            unpack_record(bytes(data), FILE, 128)


def test_names_of_files():
    assert file_name(12) == "00000012.log"
    assert file_number("00000012.log") == 12
    assert file_number(file_name(123_456_789)) == 123_456_789
    other_digits = "\u0660" * 7 + "\u0661.log"
    for name in ("12.log", "00000012.log.new", "00000012", "0000001x.log", "LOCK", other_digits, ".log"):
        assert file_number(name) is None


@given(number=U32, offset=U32, other=st.tuples(U32, U32))
def test_an_lsn_grows_over_all_files(number, offset, other):
    assert split_lsn(lsn(number, offset)) == (number, offset)
    assert (lsn(number, offset) < lsn(*other)) == ((number, offset) < other)


def test_the_numbers_of_kinds_are_the_formats():
    assert [(kind.name, kind.value) for kind in RecordKind] == [
        ("FEED_CREATED", 1),
        ("FEED_DROPPED", 2),
        ("BLOCK", 3),
        ("FAILOVER_ENTRY", 4),
        ("FLUSHED", 5),
        ("ROLLED_BACK", 6),
        ("TERM_PROMISED", 7),
        ("PUBLISHED", 8),
        ("PRODUCERS_TOLD", 9),
    ]
