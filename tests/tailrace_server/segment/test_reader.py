"""What was written is found, by seq and by key, beside a model that is a list of rows."""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.hashing import hash_keys, key_hash
from tailrace.segment import key_table
from tailrace_server.blocks import FoundRow
from tailrace_server.segment import NotCached, ReadCache, Reads, Segment, SegmentDamaged

KEYS = [b"a", b"b", b"ab", b"c" * 100, b"never written"]
HASHES = {"real": key_hash, "one": lambda key: 7, "two": lambda key: 2**63 + len(key) % 2}

row = st.tuples(st.sampled_from(KEYS[:-1]), st.none() | st.binary(max_size=40), st.integers(1, 3), st.integers(0, 5))
batches = st.lists(st.lists(row, min_size=1, max_size=20), max_size=6)


def stamped(made):
    """Rows (key, value, seq, timestamp) of batches in which seqs and timestamps are steps from the row before."""
    seq, timestamp, done = 0, 1000, []
    for batch in made:
        rows = []
        for key, value, seq_step, time_step in batch:
            seq, timestamp = seq + seq_step, timestamp + time_step
            rows.append((key, value, seq, timestamp))
        done.append(rows)
    return done


@pytest.fixture
def opened(one_file, written):
    """Opens a segment of blocks; closes it at the end of the test."""
    with contextlib.ExitStack() as stack:

        def open_(blocks, **members):
            segment = Segment.open(one_file(written(blocks, **members)), "a.seg")
            return stack.enter_context(contextlib.closing(segment))

        yield open_


def check_reading(segment, blocks):
    for bytes_max in (0, 1, 500, 10**30):
        read, number = [], 0
        while number < segment.blocks:
            got, after = segment.read_blocks(number, bytes_max)
            nbytes = sum(block.nbytes for block in got)
            assert len(got) == after - number >= 1
            assert len(got) == 1 or nbytes <= bytes_max
            assert after == segment.blocks or nbytes + blocks[after].nbytes > bytes_max
            read += got
            number = after
        assert read == blocks
    assert segment.read_blocks(segment.blocks, 100) == ([], segment.blocks)


def check_many(segment, newest, hash_of):
    """What is found by blocks is what is found alone. Keys that are not named have no row."""
    keys = [*KEYS, *KEYS[:2]]
    hashes = [hash_of(key) for key in keys]
    with mock.patch.object(key_table, "_SLAB_PAGES", 2):
        for least, room, kept in ((1, 10**6, None), (1, 30, ReadCache(10**6)), (3, 10**6, ReadCache(500))):
            with mock.patch.object(key_table, "SLAB_HASHES_MIN", least):
                for _ in range(2):
                    named = set()
                    for numbers, rows in segment.find_all(keys, hashes, lambda room=room: room, kept=kept):
                        named |= set(numbers)
                        columns = zip(rows.seqs, rows.timestamps, rows.values, strict=True)
                        for index, (number, row) in enumerate(zip(numbers, columns, strict=True)):
                            assert index in rows.alone or row == newest[keys[number]]
                    for number in set(range(len(keys))) - named:
                        assert keys[number] not in newest


def check_seqs(segment, blocks, last_seq):
    assert segment.first_seqs.tolist() == [block.header.first_seq for block in blocks]
    assert segment.last_seqs.tolist() == [block.header.last_seq for block in blocks]
    for seq in range(last_seq + 2):
        above = [number for number, block in enumerate(blocks) if block.header.last_seq > seq]
        assert segment.block_after(seq) == min(above, default=len(blocks))


def check_identity(segment, batches_):
    identity, rows = segment.identity, [row for batch in batches_ for row in batch]
    assert identity.rows == len(rows)
    assert identity.tombstones == sum(row[1] is None for row in rows)
    assert identity.oldest_timestamp == min((row[3] for row in rows), default=0)
    assert identity.newest_timestamp == max((row[3] for row in rows), default=0)
    assert identity.key_value_bytes == sum(len(row[0]) + len(row[1] or b"") for row in rows)


@pytest.mark.usefixtures("small_pages")
class TestSmallPages:
    @given(batches, st.sampled_from(sorted(HASHES)), st.booleans(), st.integers(0, 5))
    def test_what_was_written_is_found(self, one_file, written, block_of, made, name, compress, beyond):
        hash_of, rows = HASHES[name], stamped(made)
        blocks = [block_of(batch, hash_of=hash_of, compress=compress) for batch in rows]
        last_seq = (rows[-1][-1][2] if rows else 1) + beyond
        data = written(blocks, last_seq=last_seq)
        with contextlib.closing(Segment.open(one_file(data), "a.seg")) as segment:
            assert (segment.path, segment.nbytes, segment.blocks) == ("a.seg", len(data), len(blocks))
            newest = {key: FoundRow(seq, stamp, value) for batch in rows for key, value, seq, stamp in batch}
            for key in KEYS:
                assert segment.find(key, hash_of(key)) == newest.get(key)
            for bytes_max in (0, 5_000, 10**9):
                kept = ReadCache(bytes_max)
                for key in [*KEYS, *KEYS]:
                    assert segment.find(key, hash_of(key), kept=kept) == newest.get(key)
                    assert kept.nbytes <= bytes_max
            check_many(segment, newest, hash_of)
            check_reading(segment, blocks)
            check_seqs(segment, blocks, last_seq)
            check_identity(segment, rows)
            assert segment.verify() == []


def test_a_large_segment(opened, block_of, identity_of):
    """Many blocks of many rows: the footer is longer than one read, the key table has many pages."""
    blocks = [
        block_of([(b"%d %d" % (number, row), b"v" * (row % 7), number * 4 + row + 1, number) for row in range(4)])
        for number in range(3_000)
    ]
    segment = opened(blocks, after_seq=0)
    assert segment.blocks == 3_000
    for number in (0, 1, 1_499, 2_999):
        key = b"%d 3" % number
        assert segment.find(key, key_hash(key)) == FoundRow(number * 4 + 4, number, b"vvv")
    assert segment.find(b"missing", key_hash(b"missing")) is None
    assert segment.identity == identity_of(
        12_000,
        rows=12_000,
        newest_timestamp=2_999,
        key_value_bytes=sum(len(block.columns().key_data) + len(block.columns().value_data) for block in blocks),
    )
    assert segment.verify() == []


def test_many_keys_of_a_large_segment_take_few_reads(one_file, written, block_of):
    rows = [(b"key %d" % number, b"v%d" % number, number + 1, 0) for number in range(20_000)]
    disk = one_file(written([block_of(rows[begin : begin + 2_000]) for begin in range(0, 20_000, 2_000)]))
    with contextlib.closing(Segment.open(disk, "a.seg")) as segment:
        keys = [b"key %d" % number for number in range(0, 30_000, 100)]
        before, found, kept = disk.reads, {}, ReadCache(1 << 24)
        for _ in range(2):
            for numbers, of_block in segment.find_all(keys, hash_keys(keys), lambda: 10**6, kept=kept):
                found |= {keys[number]: value for number, value in zip(numbers, of_block.values, strict=True)}
                assert of_block.alone == []
            assert disk.reads - before == 11, "the key table, which is kept, and each block"
        assert found == {key: value for key, value, _, _ in rows[::100]}


def test_what_was_found_is_told_at_the_end_of_the_time_and_before_an_error(one_file, written, block_of):
    rows = [(b"key %d" % number, b"v", number + 1, 0) for number in range(100)]
    disk = one_file(written([block_of(rows[begin : begin + 10]) for begin in range(0, 100, 10)]))
    with contextlib.closing(Segment.open(disk, "a.seg")) as segment:
        keys, hashes = [row[0] for row in rows], hash_keys([row[0] for row in rows])
        [(numbers, found)] = segment.find_all(keys, hashes, lambda: 10**6)
        assert sorted(numbers) == list(range(100))
        assert found.seqs == [number + 1 for number in numbers]
        in_turns = list(segment.find_all(keys, hashes, lambda: 10**6, out_of_time=lambda: True))
        assert [len(numbers) for numbers, _ in in_turns] == [10] * 10
        reads = [segment._file.read] * 4  # the key table, and three blocks
        walk = segment.find_all(keys, hashes, lambda: 10**6, lambda file, *place: reads.pop()(*place))
        with mock.patch.object(key_table, "SLAB_HASHES_MIN", 1):
            assert len(next(walk)[0]) == 30
            with pytest.raises(IndexError):
                next(walk)


def test_many_keys_of_a_damaged_table(one_file, written, block_of):
    disk = one_file(written([block_of([(b"key %d" % number, b"", number + 1, 0) for number in range(100)])]))
    with contextlib.closing(Segment.open(disk, "a.seg")) as segment:
        keys = [b"key %d" % number for number in range(50)]
        disk.data[segment._keys._offset + 5] ^= 1
        with pytest.raises(SegmentDamaged):
            list(segment.find_all(keys, hash_keys(keys), lambda: 10**6))


def test_a_segment_of_no_rows(opened):
    segment = opened([], last_seq=9, is_major=True, purge_seq=9)
    assert (segment.blocks, segment.identity.rows) == (0, 0)
    assert segment.read_blocks(0, 100) == ([], 0)
    assert segment.block_after(0) == 0
    assert segment.find(b"a", key_hash(b"a")) is None
    assert segment.find(b"a", 0) is None
    assert list(segment.find_all([b"a"], [0], lambda: 100)) == []
    assert segment.verify() == []


def test_a_block_is_read_once_for_all_its_rows_of_a_hash(one_file, written, block_of):
    rows = [(b"%d" % number, b"", number + 1, 0) for number in range(200)]
    disk = one_file(written([block_of(rows, hash_of=lambda key: 7)]))
    segment = Segment.open(disk, "a.seg")
    before = disk.reads
    assert segment.find(b"0", 7) == FoundRow(1, 0, b"")
    assert disk.reads - before == 2
    segment.close()
    segment.close()


@pytest.mark.usefixtures("small_pages")
def test_what_is_not_in_memory_is_loaded_once(one_file, written, block_of):
    rows = [(b"%d" % number, b"v%d" % number, number + 1, 0) for number in range(200)]
    disk = one_file(written([block_of(rows[:100]), block_of(rows[100:])]))
    segment = Segment.open(disk, "a.seg")
    for key in (b"7", b"150", b"never written"):
        expected = segment.find(key, key_hash(key))
        before = disk.reads
        assert segment.find(key, key_hash(key), Reads().read) == expected
        needed, before = disk.reads - before, disk.reads
        disk.cached, reads, loads, segments = False, Reads(), 0, set()
        while True:
            try:
                found = segment.find(key, key_hash(key), reads.read)
                break
            except NotCached as missing:
                missing.load()
                segments.add(missing.segment)
                loads += 1
        assert found == expected
        assert segments <= {segment}
        assert loads == needed == disk.reads - before, "nothing is read twice, whatever memory forgets"
        reads.forget()
        with pytest.raises(NotCached):
            segment.find(key, key_hash(key), reads.read)
        disk.cached = True
    segment.close()


def test_what_is_loaded_may_be_damaged(one_file, written, block_of):
    disk = one_file(written([block_of([(b"a", b"1", 1, 1)])]))
    segment = Segment.open(disk, "a.seg")
    disk.cached = False
    with pytest.raises(NotCached) as caught:
        segment.find(b"a", key_hash(b"a"), Reads().read)
    disk.bad = range(len(disk.data))
    with pytest.raises(SegmentDamaged, match="the disk can't read it"):
        caught.value.load()
    segment.close()


def test_progress_tells_every_byte(opened, block_of):
    segment = opened([block_of([(b"a", b"1", 1, 1)]), block_of([(b"b", b"2", 2, 1)])])
    told = []
    assert segment.verify(told.append) == []
    assert sum(told) == segment.nbytes


def test_what_is_no_segment_is_refused(one_file, written, block_of):
    data = written([block_of([(b"a", b"1", 1, 1)])])
    for nbytes in (0, 1, 63, 159):
        with pytest.raises(SegmentDamaged, match=f"the file has {nbytes} bytes, a segment at least 160"):
            Segment.open(one_file(data[:nbytes]), "a.seg")
    for nbytes in range(160, len(data), 41):
        with pytest.raises(SegmentDamaged, match="it was cut, or never finished"):
            Segment.open(one_file(data[:nbytes]), "a.seg")
    with pytest.raises(SegmentDamaged, match="the file begins with"):
        Segment.open(one_file(b"!" + data), "a.seg")


def test_a_file_that_is_missing_is_not_damage(memory_disk):
    with pytest.raises(FileNotFoundError):
        Segment.open(memory_disk(), "/a.seg")


def test_parts_of_different_segments_do_not_make_one(one_file, written, block_of):
    """Each part has its checksums right, and is not the one that belongs there."""
    rows = [(b"a", b"1", 1, 1)]
    one = written([block_of(rows)])
    other = written([block_of(rows)], segment_id=b"O" * 16)
    with pytest.raises(SegmentDamaged, match="the header and the identity name different segments"):
        Segment.open(one_file(other[:64] + one[64:]), "a.seg")
    stranger = block_of([(b"a", b"1", 2, 1)]).tobytes()
    segment = Segment.open(one_file(one[:64] + stranger + one[64 + len(stranger) :]), "a.seg")
    with pytest.raises(SegmentDamaged, match="damaged at offset 64: seqs, bytes, rows and partition of this block"):
        segment.read_blocks(0, 100)
    with pytest.raises(SegmentDamaged, match="damaged at offset 64"):
        segment.find(b"a", key_hash(b"a"))
    assert [problem.offset for problem in segment.verify()] == [64, 0]


def test_kept_parts_are_not_read_again(opened, block_of):
    segment, kept, reads = opened([block_of([(b"a", b"1", 1, 1), (b"b", b"2", 2, 1)])]), ReadCache(10**6), []

    def read(file, offset, nbytes):
        reads.append(offset)
        return file.read(offset, nbytes)

    assert segment.find(b"a", key_hash(b"a"), read, kept) == FoundRow(1, 1, b"1")
    assert len(reads) == 2, "a page of the key table, and the block"
    assert segment.find(b"b", key_hash(b"b"), read, kept) == FoundRow(2, 1, b"2")
    assert len(reads) == 2


def test_damaged_parts_are_not_kept(one_file, written, block_of):
    file = one_file(written([block_of([(b"a", b"1" * 500, 1, 1)], compress=False)]))
    at = file.data.index(b"1" * 500)
    with contextlib.closing(Segment.open(file, "a.seg")) as segment:
        kept = ReadCache(10**6)
        file.data[at] = ord("2")
        for _ in range(2):
            with pytest.raises(SegmentDamaged):
                segment.find(b"a", key_hash(b"a"), kept=kept)
        file.data[at] = ord("1")
        assert segment.find(b"a", key_hash(b"a"), kept=kept) == FoundRow(1, 1, b"1" * 500)
