"""A copy that is read without a server, against the rows that were written to it."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import random
import shutil
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from tests.segments import identity_of
from tests.tailrace.copies import copied
from tests.tailrace.copies.copied import FEED_ID, LOG, Row, newest, rows_of, run_of, write_copy

import tailrace
from tailrace import BadCopy, IncompleteCopy, Item, Position, SegmentReader, Version
from tailrace.block import lazy
from tailrace.copies import arrow
from tailrace.copies.layout import FeedCopy
from tailrace.model.hashing import key_hash, partition_of_hash

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("seq", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("deleted", pa.bool_()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("expired", pa.bool_()),
    ]
)


def some_rows(count, first_seq=1, keys=20, seed=0):
    rng = random.Random(seed)
    rows = []
    for seq in range(first_seq, first_seq + count):
        value = None if rng.random() < 0.2 else b"value %d" % seq
        rows.append(Row(b"key %d" % rng.randrange(keys), value, seq, 1_700_000_000_000_000 + seq))
    return rows


CHAINS = {
    0: [run_of(some_rows(30)), run_of(some_rows(10, 31, seed=1)), run_of(some_rows(3, 41, seed=2))],
    2: [run_of(some_rows(25, 8, seed=3), after_seq=7)],
    3: [],
}
ALL = {partition: [row for run in runs for row in rows_of(run)] for partition, runs in CHAINS.items()}
NEWEST = {partition: newest(rows) for partition, rows in ALL.items()}


@pytest.fixture
def directory(tmp_path):
    return write_copy(tmp_path / "copy", CHAINS)


def table_of(by_partition):
    """The Arrow table of rows by partition."""
    rows = [(partition, *row) for partition, rows in by_partition.items() for row in rows]
    columns = {
        "partition": [row[0] for row in rows],
        "seq": [row[3] for row in rows],
        "key": [row[1] for row in rows],
        "value": [row[2] for row in rows],
        "deleted": [row[2] is None for row in rows],
        "timestamp": [row[4] for row in rows],
        "expired": [False for _ in rows],
    }
    return pa.table(columns, SCHEMA)


def rows_in(mutations):
    return [Row(m.key, m.value, m.seq, m.timestamp) for event in mutations for m in event]


class TestWhatItReads:
    def test_the_feed_and_its_partitions(self, directory):
        reader = SegmentReader(directory)
        assert reader.feed == copied.feed_of()
        assert (reader.cluster_id, reader.directory) == (copied.CLUSTER_ID, directory)
        assert {number: copy.seq for number, copy in reader.partitions.items()} == {0: 43, 2: 32, 3: 0}
        assert [copy.first_seq for copy in reader.partitions.values()] == [1, 8, 1]
        assert repr(reader) == f"<SegmentReader of 'orders' in {directory!r}: 3 partitions>"

    def test_the_newest_mutation_of_each_key_of_a_compact_feed(self, directory):
        reader = SegmentReader(Path(directory))
        for partition in CHAINS:
            assert rows_in(reader.mutations(partition)) == NEWEST[partition]
            assert rows_in(reader.mutations(partition, latest=False)) == ALL[partition]

    def test_every_mutation_of_a_history(self, tmp_path):
        reader = SegmentReader(write_copy(tmp_path, CHAINS, copied.feed_of("history")))
        for partition in CHAINS:
            assert rows_in(reader.mutations(partition)) == ALL[partition]
            assert rows_in(reader.mutations(partition, latest=True)) == NEWEST[partition]

    def test_the_changes_since_an_earlier_copy(self, directory):
        reader = SegmentReader(directory)
        assert rows_in(reader.mutations(0, from_seq=31)) == [row for row in NEWEST[0] if row.seq > 30]
        assert rows_in(reader.mutations(0, from_seq=31, to_seq=35, latest=False)) == ALL[0][30:35]
        assert rows_in(reader.mutations(0, from_seq=44)) == []
        assert rows_in(reader.mutations(0, from_seq=9, to_seq=8)) == []
        assert rows_in(reader.mutations(0, to_seq=0)) == []

    def test_some_partitions(self, directory):
        reader = SegmentReader(directory, partitions=[3, 2, 2])
        assert list(reader.partitions) == [2, 3]
        with pytest.raises(KeyError):
            reader.mutations(0)
        with pytest.raises(ValueError, match="partitions is True: an integer"):
            SegmentReader(directory, partitions=[True])
        with pytest.raises(TypeError, match="partitions is '2': an integer"):
            SegmentReader(directory, partitions="2")
        with pytest.raises(ValueError, match=r"has not fetched partition 1: run `tailrace fetch orders .*--partitions"):
            SegmentReader(directory, partitions=[0, 1])

    def test_a_key(self, directory):
        reader = SegmentReader(directory)
        for row in (*NEWEST[0], Row(b"nothing", None, 1, 1)):
            with mock.patch("tailrace.copies.reader.partition_of_hash", return_value=0):
                found = reader.get(row.key)
            branch = LOG[0].branch if row.seq > 9 else LOG[1].branch
            version = Version(0, branch, row.seq)
            assert found == (None if row.value is None else Item(row.key, row.value, version, row.timestamp))
        absent = next(key for key in (b"%d" % n for n in range(99)) if partition_of_hash(key_hash(key), 4) == 1)
        with pytest.raises(KeyError):
            reader.get(absent)

    def test_the_positions_to_go_on_from(self, directory):
        positions = SegmentReader(directory).positions
        assert (positions.cluster_id, positions.feed_id) == (copied.CLUSTER_ID, FEED_ID)
        assert dict(positions) == {0: Position.at(LOG, 43), 2: Position.at(LOG, 32), 3: Position.at(LOG, 0)}
        assert tailrace.Positions.parse(str(positions)) == positions

    def test_it_can_be_sent_to_another_process(self, directory):
        again = pickle.loads(pickle.dumps(SegmentReader(directory)))
        assert rows_in(again.mutations(2)) == NEWEST[2]

    def test_files_that_are_no_part_of_the_copy_do_no_harm(self, directory):
        for name in ("LOCK", "FEED.json.new", "0/CHECKPOINT.json.new", f"0/{'00' * 16}.seg.new", f"0/{'11' * 16}.seg"):
            Path(directory, name).write_bytes(b"half")
        Path(directory, "1").mkdir()
        assert rows_in(SegmentReader(directory).mutations(0)) == NEWEST[0]

    def test_verify_reads_every_file(self, directory):
        nbytes = sum(path.stat().st_size for path in Path(directory).glob("*/*.seg"))
        assert SegmentReader(directory).verify() == nbytes


class TestArrow:
    @pytest.mark.parametrize("rows", [1, 2, 7, 1_000])
    @pytest.mark.parametrize("latest", [True, False])
    def test_batches(self, directory, rows, latest):
        batches = list(SegmentReader(directory).batches(rows, latest=latest))
        expected = NEWEST if latest else ALL
        assert pa.Table.from_batches(batches, SCHEMA) == table_of(expected)
        counts = [len(of_partition) for of_partition in expected.values()]
        full = [[rows] * (count // rows) + ([count % rows] if count % rows else []) for count in counts]
        assert [batch.num_rows for batch in batches] == [count for parts in full for count in parts]

    def test_a_table(self, directory):
        reader = SegmentReader(directory)
        assert reader.to_arrow() == table_of(NEWEST)
        assert reader.to_arrow(partition=2, latest=False) == table_of({2: ALL[2]})
        assert reader.to_arrow(from_seq=20, to_seq=33, latest=False) == table_of(
            {partition: [row for row in rows if 20 <= row.seq <= 33] for partition, rows in ALL.items()}
        )
        reader.to_arrow().validate(full=True)

    def test_an_empty_copy_has_its_columns(self, tmp_path):
        reader = SegmentReader(write_copy(tmp_path, {1: []}))
        assert reader.to_arrow() == SCHEMA.empty_table()
        assert list(reader.batches()) == []

    def test_programs_that_read_arrow_streams(self, directory):
        reader = SegmentReader(directory)
        assert pa.table(reader) == table_of(NEWEST)
        stream = reader.to_reader(10, partition=0)
        assert stream.schema == SCHEMA
        assert stream.read_all() == table_of({0: NEWEST[0]})

    def test_large_values_make_smaller_batches(self, directory, monkeypatch):
        monkeypatch.setattr(arrow, "BATCH_BYTES_MAX", 300)
        monkeypatch.setattr("tailrace.segment.rows.READ_BYTES", 1)
        batches = list(SegmentReader(directory).batches(1_000, partition=0, latest=False))
        assert pa.Table.from_batches(batches) == table_of({0: ALL[0]})
        assert len(batches) > 1
        assert max(batch.nbytes for batch in batches) < 1_500

    def test_batches_are_read_as_they_are_asked_for(self, directory):
        with mock.patch("tailrace.copies.chain.superseded_rows", side_effect=RuntimeError("it reads")):
            batches = SegmentReader(directory).batches()
            with pytest.raises(RuntimeError, match="it reads"):
                next(batches)

    def test_a_count_of_rows_that_cannot_be(self, directory):
        with pytest.raises(ValueError, match="rows is 0, a batch has at least 1"):
            SegmentReader(directory).batches(0)

    def test_without_pyarrow_it_says_what_to_install(self, directory, monkeypatch):
        reader = SegmentReader(directory)
        monkeypatch.setattr(lazy, "pyarrow_or_none", lambda: None)
        for read in (reader.batches, reader.to_arrow, reader.to_reader):
            with pytest.raises(ImportError, match=r"pip install 'tailrace\[arrow\]'"):
                read()
        assert rows_in(reader.mutations(0)) == NEWEST[0]

    def test_without_numpy_it_says_what_to_install(self, directory, monkeypatch):
        monkeypatch.setattr(lazy, "numpy_or_none", lambda: None)
        with pytest.raises(ImportError, match=r"this needs numpy: pip install 'tailrace\[arrow\]'"):
            SegmentReader(directory)


@pytest.mark.slow
def test_the_client_is_imported_without_numpy():
    code = "import sys, tailrace; tailrace.SegmentReader; assert not {'numpy', 'pyarrow'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def segments_of(directory, partition=0):
    return sorted(Path(directory, str(partition)).glob("*.seg"))


def read_all(directory):
    """Everything that can be read, in both ways."""
    reader = SegmentReader(directory)
    return {number: rows_in(reader.mutations(number, latest=False)) for number in reader.partitions}


class TestBadCopies:
    def test_a_directory_that_is_none(self, tmp_path):
        file = tmp_path / "a file"
        file.write_bytes(b"rows")
        for path in (tmp_path, tmp_path / "missing", file):
            with pytest.raises(BadCopy, match=r"FEED\.json is missing: the directory is no copy of a feed") as caught:
                SegmentReader(path)
            assert caught.value.path == str(path / "FEED.json")

    def test_a_fetch_that_was_interrupted_before_a_partition(self, directory):
        Path(directory, "2", "CHECKPOINT.json").unlink()
        with pytest.raises(IncompleteCopy, match="a fetch was interrupted, or is under way; run `tailrace fetch"):
            SegmentReader(directory)
        assert rows_in(SegmentReader(directory, partitions=[0]).mutations(0)) == NEWEST[0]
        shutil.rmtree(Path(directory, "2"))
        with pytest.raises(IncompleteCopy, match=r"2.CHECKPOINT\.json is missing"):
            SegmentReader(directory)

    @pytest.mark.parametrize("name", ["FEED.json", "0/CHECKPOINT.json"])
    @pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 100, None], ids=["empty", "object", "zeros", "cut"])
    def test_files_that_are_damaged(self, directory, name, content):
        path = Path(directory, name)
        path.write_bytes(path.read_bytes()[:-9] if content is None else content)
        remedy = (
            "fetch into another directory" if name == "FEED.json" else "remove it, and run `tailrace fetch .*` again"
        )
        with pytest.raises(BadCopy, match=f"is damaged: .*; {remedy}") as caught:
            SegmentReader(directory)
        assert caught.value.path == str(path)

    @pytest.mark.parametrize("name", ["FEED.json", "0/CHECKPOINT.json", "0/*0.seg"])
    @pytest.mark.parametrize("kind", ["pipe", "directory", "socket", "link to itself", "device"])
    def test_files_that_are_no_files(self, directory, name, kind, monkeypatch):
        """A pipe must not be waited for."""
        path = next(Path(directory).glob(name))
        path.unlink()
        if kind == "socket":
            monkeypatch.chdir(path.parent)  # its path may have 108 bytes
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
                bound.bind(path.name)
        else:
            make = {"pipe": os.mkfifo, "directory": os.mkdir}
            make.get(kind, lambda path: path.symlink_to("/dev/zero" if kind == "device" else path))(path)
        with pytest.raises(BadCopy, match="is no regular file: move it away, or fetch into another") as caught:
            read_all(directory)
        assert caught.value.path == str(path)

    def test_a_newer_layout(self, directory, monkeypatch):
        monkeypatch.setattr("tailrace.copies.layout.VERSION", 2)
        with mock.patch.object(FeedCopy, "decode"):
            copied.write_feed(directory, copied.feed_of(), CHAINS)
        monkeypatch.undo()
        with pytest.raises(BadCopy, match=r"has version 2 of the layout; .*; read it with the Tailrace"):
            SegmentReader(directory)

    def test_a_newer_segment(self, directory):
        path = segments_of(directory)[0]
        data = bytearray(path.read_bytes())
        data[-8] = 3
        path.write_bytes(data)
        with pytest.raises(BadCopy, match=r"has version 3 of the segment; .*; read it with the Tailrace"):
            read_all(directory)

    def test_a_file_that_is_missing(self, directory):
        path = segments_of(directory)[1]
        path.unlink()
        with pytest.raises(IncompleteCopy, match="is missing: if a fetch has replaced it") as caught:
            read_all(directory)
        assert caught.value.path == str(path)

    @pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 5_000, -1])
    def test_a_file_that_was_cut(self, directory, nbytes):
        path = segments_of(directory)[0]
        path.write_bytes(path.read_bytes()[:nbytes])
        with pytest.raises(BadCopy, match=r"is damaged at offset 0: the file has \d+ bytes, CHECKPOINT.json says"):
            read_all(directory)

    def test_a_file_of_another_segment(self, directory):
        first, second, _ = segments_of(directory)
        copied.write_segment(directory, 0, CHAINS[0][0], 9)
        other = Path(directory, f"{(bytes([0, 9]) * 8).hex()}.seg")
        assert other.stat().st_size == first.stat().st_size
        os.replace(other, first)
        with pytest.raises(BadCopy, match=r"it is segment 00090009.*: another one than CHECKPOINT.json says"):
            read_all(directory)
        assert second.exists()

    def test_a_file_of_another_feed(self, directory):
        path = segments_of(directory)[0]
        run, size = CHAINS[0][0], path.stat().st_size
        path.unlink()
        with mock.patch.object(copied, "identity_of", functools.partial(identity_of, feed_id=b"other feed......")):
            copied.write_segment(path.parent, 0, run, 0)
        assert path.stat().st_size == size
        with pytest.raises(BadCopy, match=f"of the feed with the id {(b'other feed......').hex()}"):
            read_all(directory)

    def test_a_file_with_other_rows(self, directory):
        """The same segment id, run and size: only the checksum tells."""
        path = segments_of(directory)[0]
        rows = [row._replace(value=row.value and row.value[::-1]) for row in rows_of(CHAINS[0][0])]
        size = path.stat().st_size
        path.unlink()
        copied.write_segment(path.parent, 0, run_of(rows), 0)
        assert path.stat().st_size == size
        with pytest.raises(BadCopy, match=r"its checksum is [0-9a-f]{32}, CHECKPOINT.json says [0-9a-f]{32};"):
            read_all(directory)

    @pytest.mark.slow
    def test_a_flipped_bit_gives_an_error_or_the_right_rows_and_verify_finds_it(self, directory):
        path = segments_of(directory, 2)[0]
        good = path.read_bytes()
        middle = random.Random(1).sample(range(64, len(good)), 300)
        errors = []
        for place in [*range(64), *middle, *range(len(good) - 96, len(good))]:
            data = bytearray(good)
            data[place] ^= 1 << place % 8
            path.write_bytes(data)
            with pytest.raises(BadCopy) as caught:
                SegmentReader(directory, partitions=[2]).verify()
            assert caught.value.path == str(path)
            try:
                assert read_all(directory) == ALL
            except BadCopy as error:
                errors.append(error.path)
        assert set(errors) == {str(path)}
        assert len(errors) > 100

    def test_a_later_fetch_does_not_disturb_what_has_begun(self, directory):
        reader = SegmentReader(directory)
        begun = reader.mutations(0, latest=False)
        first = next(begun)
        later = run_of(some_rows(20, 1, seed=9))
        for path in segments_of(directory):
            path.unlink()
        inside = Path(directory, "0")
        copied.write_checkpoint(inside, 0, [copied.write_segment(inside, 0, later, 7)])
        assert [*first] + [m for event in begun for m in event] == [
            (row.key, row.value, row.seq, row.timestamp, row.value is None, False) for row in ALL[0]
        ]
        with pytest.raises(IncompleteCopy, match="open the copy again"):
            list(reader.mutations(0))
        assert rows_in(SegmentReader(directory).mutations(0, latest=False)) == rows_of(later)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    """Only the mask does, by a byte a row."""
    monkeypatch.setattr("tailrace.segment.newest.HASHES_MAX", 1_000)
    monkeypatch.setattr("tailrace.segment.rows.READ_BYTES", 50_000)
    peaks = []
    for number, count in enumerate((4_000, 16_000)):
        rows = [Row(b"key %d" % (seq % 3_000), b"v" * 100, seq, 5) for seq in range(1, count + 1)]
        half = len(rows) // 2
        runs = [run_of(rows[:half], block_rows=200), run_of(rows[half:], block_rows=200)]
        reader = SegmentReader(write_copy(tmp_path / str(number), {0: runs}))
        tracemalloc.start()
        found = 0
        for batch in reader.batches(500):
            found += batch.num_rows
            del batch
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert found == 3_000
    assert peaks[1] < peaks[0] + 400_000, peaks
