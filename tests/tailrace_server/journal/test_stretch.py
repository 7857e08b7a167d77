"""Records read by columns are those that are read one at a time, and both ways stop at the same place."""

from __future__ import annotations

import contextlib
import struct

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.memory_disk import MemoryDisk
from tests.tiers import examples

from tailrace.block import encode_block
from tailrace_server.journal import RecordKind, open_journal, reader
from tailrace_server.journal.format import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, JournalHeader, padded
from tailrace_server.journal.inspection import inspect
from tailrace_server.journal.published_record import decode_published, encode_published
from tailrace_server.journal.reader import BadRecord, Window, read_record, record_of
from tailrace_server.journal.stretch import read_stretch
from tailrace_server.state.last_batches import LastBatch

FEEDS = (b"F" * 16, bytes(range(16)))
BRANCH = b"B" * 16
PATH = "/journal/00000001.log"
# Each of the record's fields and of the block's: where it stands, and how it is packed.
RECORD_FIELDS = ((0, "<Q"), (8, "<I"), (12, "<I"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<H"), (30, "<H"))
RECORD_FIELDS += ((32, "<I"), (36, "<I"), (72, "<Q"), (80, "<Q"))
BLOCK_FIELDS = ((0, "<I"), (4, "<H"), (6, "<H"), (8, "<I"), (12, "<I"), (16, "<Q"), (24, "<Q"), (32, "<Q"), (40, "<Q"))
BLOCK_FIELDS += ((48, "<I"), (52, "<I"), (56, "<I"), (60, "<I"), (64, "<Q"), (72, "<Q"), (80, "<Q"))
# Of batches: an older client sends none.
DIGESTS = (None, 0, 0x0123456789ABCDEF)
NUMBERS = st.one_of(
    st.integers(0, 300), st.sampled_from([2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])
)


@contextlib.contextmanager
def windows_of(nbytes):
    """Reads of so many bytes: many of them in a small file."""
    before, reader.WINDOW_BYTES = reader.WINDOW_BYTES, nbytes
    try:
        yield
    finally:
        reader.WINDOW_BYTES = before


def block_of(rows, value, first_seq, *, compress=False):
    values = [value if number % 3 else None for number in range(rows)]
    keys = [b"k%d" % number for number in range(rows)]
    return encode_block(keys, values, partition=2, compress=compress).stamped(first_seq, 1_000).numbered(7, 1)


block_specs = st.tuples(
    st.just("block"), st.integers(1, 6), st.one_of(st.binary(max_size=40), st.just(b"v" * 900)), st.booleans()
)
control_specs = st.tuples(
    st.just("control"),
    st.sampled_from([kind for kind in RecordKind if kind not in (RecordKind.BLOCK, RecordKind.PUBLISHED)]),
    st.binary(max_size=300),
)
published_specs = st.tuples(st.just("published"), st.integers(0, 3))
specs = st.lists(st.one_of(block_specs, block_specs, control_specs, published_specs, st.just(("sync",))), max_size=40)


def write(journal, spec, number):
    match spec:
        case ("block", rows, value, compress):
            block = block_of(rows, value, number * 10 + 1, compress=compress)
            journal.append_block(FEEDS[number % 2], 2, BRANCH, block, (number, number + 1))
        case ("control", kind, payload):
            journal.append(kind, FEEDS[number % 2], number, payload)
        case ("published", count):
            blocks = [block_of(1, b"v", number * 10 + 1 + index) for index in range(count)]
            last = LastBatch(1, "here", number * 10 + 1, DIGESTS[number % len(DIGESTS)])
            covered, bodies = encode_published({"sink": last}, blocks)
            journal.append_published(FEEDS[0], 2, BRANCH, covered, bodies)
        case ("sync",):
            journal.sync()


def written(specs):
    """A journal's file, and where its records begin and end."""
    disk = MemoryDisk()
    journal, _ = open_journal(disk, "/journal")
    for number, spec in enumerate(specs):
        write(journal, spec, number)
    journal.sync()
    places, offset, content = [], FILE_HEADER_BYTES, disk.content(PATH)
    while offset < journal.end[1]:
        (length,) = struct.unpack_from("<I", content, offset + 20)
        places.append(offset)
        offset += RECORD_HEADER_BYTES + padded(length)
    return disk, places, offset


def forge(content, place, fields, base, field, value):
    """Sets a field of the record at ``place``, or of its block, and makes the sums right again."""
    at, packing = fields[field % len(fields)]
    width = struct.calcsize(packing)
    content[place + base + at : place + base + at + width] = struct.pack(packing, value & (1 << 8 * width) - 1)
    block = place + RECORD_HEADER_BYTES
    if base:
        struct.pack_into("<Q", content, block + 88, xxhash.xxh3_64_intdigest(bytes(content[block : block + 88])))
    (covered,) = struct.unpack_from("<I", content, place + 24)
    summed = bytes(content[place : place + 88]) + bytes(content[block : block + min(covered, len(content))])
    struct.pack_into("<Q", content, place + 88, xxhash.xxh3_64_intdigest(summed))


damages = st.one_of(
    st.none(),
    st.tuples(st.just("flip"), st.integers(0, 10_000), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.integers(0, 10_000)),
    st.tuples(st.just("zero"), st.integers(0, 10_000), st.integers(1, 500)),
    st.tuples(st.just("move"), st.integers(0, 40), st.integers(0, 40)),
    st.tuples(st.just("record"), st.integers(0, 40), st.integers(0, 20), NUMBERS),
    st.tuples(st.just("block"), st.integers(0, 40), st.integers(0, 20), NUMBERS),
)


def damage(content, places, end, how):
    match how:
        case ("flip", at, bit):
            content[at % end] ^= 1 << bit
        case ("cut", at):
            del content[at % end :]
        case ("zero", at, nbytes):
            begin = at % end
            content[begin : min(begin + nbytes, end)] = bytes(min(begin + nbytes, end) - begin)
        case ("move", source, target) if places:
            source, target = places[source % len(places)], places[target % len(places)]
            piece = bytes(content[source : source + 200])
            content[target : target + len(piece)] = piece
        case ("record", index, field, value) if places:
            forge(content, places[index % len(places)], RECORD_FIELDS, 0, field, value)
        case ("block", index, field, value) if places:
            forge(content, places[index % len(places)], BLOCK_FIELDS, RECORD_HEADER_BYTES, field, value)


def one_at_a_time(window, file, limit):
    """The records before the first bad one, and why that is bad."""
    found, offset = [], FILE_HEADER_BYTES
    while offset < limit:
        try:
            raw = read_record(window, file, offset, limit)
        except BadRecord as error:
            return found, (error.offset, str(error), error.newer)
        found.append((record_of(raw), raw.header))
        offset = raw.header.end
    return found, None


def by_columns(window, file, limit):
    """The same, read by columns."""
    found, offset = [], FILE_HEADER_BYTES
    while offset < limit:
        stretch = read_stretch(window, file, offset, limit)
        if stretch is None:
            try:
                raw = read_record(window, file, offset, limit)
            except BadRecord as error:
                return found, (error.offset, str(error), error.newer)
            found.append(record_of(raw))
            offset = raw.header.end
            continue
        records = [stretch.record(index) for index in range(len(stretch))]
        assert stretch.lsns.tolist() == [record.lsn for record in records]
        assert [record.block is not None for record in records] == stretch.is_block.tolist()
        found += records
        offset = stretch.end
    return found, None


@given(specs=specs, how=damages, more=damages, window_bytes=st.sampled_from([512, 2048, 1 << 16]), data=st.data())
def test_both_ways_find_the_same_records_and_the_same_end(specs, how, more, window_bytes, data):
    disk, places, end = written(specs)
    content = disk.content(PATH)
    for one in (how, more):
        if one is not None and len(content) >= end:
            damage(content, places, end, one)
    if len(content) < FILE_HEADER_BYTES:
        return
    try:
        file = JournalHeader.unpack(bytes(content[:FILE_HEADER_BYTES]))
    except ValueError:
        return
    limit = min(data.draw(st.sampled_from([end, end + 1, *places])), len(content))
    with windows_of(window_bytes), contextlib.closing(disk.open(PATH)) as opened:
        expected, why = one_at_a_time(Window(opened, PATH), file, limit)
        assert by_columns(Window(opened, PATH), file, limit) == ([record for record, _ in expected], why)
        facts = inspect(disk, PATH, file, limit)
    headers = [header for _, header in expected]
    assert facts.end == (headers[-1].end if headers else FILE_HEADER_BYTES)
    assert facts.synced == max([file.synced, *(header.synced for header in headers)])
    assert facts.rolled_back == any(header.kind == RecordKind.ROLLED_BACK for header in headers)
    assert (facts.bad, facts.newer) == (("", False) if why is None else why[1:])


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "base"), [(RECORD_FIELDS, 0), (BLOCK_FIELDS, RECORD_HEADER_BYTES)])
def test_each_field_is_checked_by_columns_as_it_is_one_at_a_time(fields, base):
    specs = [("block", 1, b"v", False), ("block", 3, b"v" * 900, True), ("control", RecordKind.FLUSHED, b"x" * 100)]
    for place, field in ((place, field) for place in range(3 if base == 0 else 2) for field in range(len(fields))):
        for value in (0, 1, 2, 95, 96, 97, 10**6, 2**16 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1):
            disk, places, end = written(specs)
            forge(disk.content(PATH), places[place], fields, base, field, value)
            file = JournalHeader.unpack(bytes(disk.content(PATH)[:FILE_HEADER_BYTES]))
            with contextlib.closing(disk.open(PATH)) as opened:
                expected, why = one_at_a_time(Window(opened, PATH), file, end)
                found = by_columns(Window(opened, PATH), file, end)
            assert found == ([record for record, _ in expected], why), (place, field, value)


def forge_published(content, place, at, value):
    """Sets 4 bytes of what a publish's record covers, and makes all sums right again."""
    covered, payload = struct.unpack_from("<I", content, place + 24)[0], place + RECORD_HEADER_BYTES
    struct.pack_into("<I", content, payload + at, value)
    for head in range(payload + covered - 2 * 96, payload + covered, 96):
        struct.pack_into("<Q", content, head + 88, xxhash.xxh3_64_intdigest(bytes(content[head : head + 88])))
    summed = bytes(content[place : place + 88]) + bytes(content[payload : payload + covered])
    struct.pack_into("<Q", content, place + 88, xxhash.xxh3_64_intdigest(summed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sink", "digest"),
    [
        ("sink", None),
        ("sinks", None),
        ("sunken", None),
        ('unusual " \u00e4', None),
        ("s" * 199, None),
        ("sinks", DIGESTS[-1]),
    ],
)
def test_each_field_of_a_publish_is_checked_by_columns_as_it_is_one_at_a_time(sink, digest):
    disk = MemoryDisk()
    journal, _ = open_journal(disk, "/journal")
    blocks = [block_of(2, b"v", 1), block_of(1, b"w", 3)]
    covered, bodies = encode_published({sink: LastBatch(10**18 - 1, "here", 3, digest)}, blocks)
    journal.append_published(FEEDS[0], 2, BRANCH, covered, bodies)
    journal.append(RecordKind.FLUSHED, FEEDS[0], 2, b"behind")
    journal.sync()
    end, file = journal.end[1], JournalHeader.unpack(bytes(disk.content(PATH)[:FILE_HEADER_BYTES]))
    given = bytes(disk.content(PATH))
    for at in range(0, len(covered), 4):
        (before,) = struct.unpack_from("<I", covered, at)
        for value in {0, 1, 2, before, before + 1, before ^ 0x0F, before ^ 1 << 31, before + (1 << 24) & 0xFFFFFFFF}:
            disk.content(PATH)[:] = given
            forge_published(disk.content(PATH), FILE_HEADER_BYTES, at, value & 0xFFFFFFFF)
            with contextlib.closing(disk.open(PATH)) as opened:
                expected, why = one_at_a_time(Window(opened, PATH), file, end)
                found = by_columns(Window(opened, PATH), file, end)
            assert found == ([record for record, _ in expected], why), (at, value)


def test_publishes_are_checked_without_an_object_for_each(monkeypatch):
    disk, places, end = written([("published", 1 + number % 3) for number in range(300)])
    monkeypatch.setattr("tailrace_server.journal.stretch.read_record", None)
    file = JournalHeader.unpack(bytes(disk.content(PATH)[:FILE_HEADER_BYTES]))
    assert inspect(disk, PATH, file, end).end == end
    with contextlib.closing(disk.open(PATH)) as opened:
        stretch = read_stretch(Window(opened, PATH), file, FILE_HEADER_BYTES, end)
    assert stretch.is_run.all()
    for index in range(len(places)):
        record = stretch.record(index)
        decoded, opened_ = decode_published(record.payload, record.covered), stretch.published(index)
        assert opened_.sinks == decoded.sinks
        assert [block.tobytes() for block in opened_.blocks] == [block.tobytes() for block in decoded.blocks]
        head = stretch.block_heads[index]
        assert (int(head["first_seq"]), int(head["last_seq"])) == (
            decoded.blocks[0].seqs[0],
            decoded.blocks[-1].seqs[1],
        )


def test_a_record_that_is_larger_than_a_read_stands_between_small_ones():
    disk = MemoryDisk()
    journal, _ = open_journal(disk, "/journal")
    for number, value in enumerate((b"v", b"V" * (3 << 19), b"v", b"v")):
        journal.append_block(FEEDS[0], 2, BRANCH, block_of(3, value, number * 3 + 1))
    journal.close()
    _, recovered = open_journal(disk, "/journal")
    parts = [part if isinstance(part, reader.Record) else len(part) for part in recovered.records.parts()]
    assert [part if isinstance(part, int) else part.block.header.first_seq for part in parts] == [1, 4, 2]


def test_small_records_are_checked_without_an_object_for_each(monkeypatch):
    disk, _, end = written([("block", 1, b"v", False)] * 1_000)
    monkeypatch.setattr("tailrace_server.journal.stretch.read_record", None)
    monkeypatch.setattr("tailrace_server.journal.inspection.read_record", None)
    file = JournalHeader.unpack(bytes(disk.content(PATH)[:FILE_HEADER_BYTES]))
    assert inspect(disk, PATH, file, end).end == end


@pytest.mark.parametrize("replaced_max", [0, 1 << 20])
@settings(max_examples=examples(30))
@given(specs=specs, more=specs)
def test_what_a_start_copies_is_the_same_by_columns(replaced_max, specs, more):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailrace_server.journal.recovery.REPLACE_BYTES_MAX", replaced_max)
        disk, _, _ = written(specs)
        journal, _ = open_journal(disk, "/journal", token=bytes_of)
        for number, spec in enumerate(more, len(specs)):
            write(journal, spec, number)
        disk.kill()
        found = []
        for by_columns in (True, False):
            if not by_columns:
                for module in ("inspection", "recovery"):
                    patch.setattr(f"tailrace_server.journal.{module}.read_stretch", lambda *_: None)
            copy = disk.fork()
            journal, recovered = open_journal(copy, "/journal", token=bytes_of)
            content = {name: bytes(copy.content("/journal/" + name)) for name in copy.names("/journal")}
            found.append((content, journal.statistics(), recovered.copied_bytes))
            assert journal.statistics().records == len(list(recovered.records))
    assert found[0] == found[1]


def bytes_of(nbytes):
    return b"k" * nbytes
