"""Whole compactions on the disk in memory: what comes out, and what is left when something goes wrong."""

from __future__ import annotations

import errno
import random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.block import Block
from tailrace.block.header import sum_of
from tailrace.errors import NoSpace
from tailrace.segment.identity import INCLUDED_IDS_MAX
from tailrace.segment.rows import RowBatch
from tailrace_server.compaction.errors import BadTask
from tailrace_server.compaction.task import INPUTS_MAX
from tailrace_server.compaction.worker import compact, discard
from tailrace_server.manifest import entry_of
from tailrace_server.segment import NO_BASE, Segment, SegmentDamaged

OUT = "/feed/0/out.seg"

HISTORIES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([b"a", b"b", b"c", b"dd", b"e" * 100]),
            st.none() | st.binary(max_size=20),
            st.integers(1, 3),
            st.integers(0, 2),
        ),
        max_size=12,
    ),
    min_size=1,
    max_size=5,
)


@pytest.fixture
def chain(memory_disk, chain_of):
    return chain_of(memory_disk())


@pytest.fixture
def small(chain, row):
    """Three segments, of a key that was deleted, one that was overwritten, and one that was only put."""
    chain.add([row(1, b"deleted", b"x"), row(2, b"overwritten", b"1"), row(3, b"put", b"y")])
    chain.add([row(4, b"deleted", None), row(5, b"overwritten", b"2")])
    chain.add([row(6, b"overwritten", b"3"), row(7, b"new", b"z")])
    return chain


def made(history, row):
    """Segments of rows: seqs have gaps, timestamps repeat."""
    seq = timestamp = 0
    for piece in history:
        rows = []
        seq += not piece  # a segment without rows has a seq as well
        for key, value, step, later in piece:
            seq, timestamp = seq + step, timestamp + later
            rows.append(row(seq, key, value, timestamp))
        yield rows


def small_batches(read_bytes):
    """Batches of so many bytes, and half as many where they are compressed."""
    return mock.patch.multiple("tailrace.segment.rows", READ_BYTES=read_bytes, RAW_BYTES=max(1, read_bytes // 2))


class TestResult:
    @settings(deadline=None)
    @given(
        history=HISTORIES,
        before_us=st.none() | st.integers(0, 60),
        stable_seq=st.integers(0, 60),
        block_bytes=st.integers(1, 400),
        read_bytes=st.integers(1, 1_000),
        compress=st.booleans(),
    )
    def test_what_a_plain_reading_of_the_rules_gives(
        self,
        memory_disk,
        chain_of,
        row,
        read_rows,
        model,
        history,
        before_us,
        stable_seq,
        block_bytes,
        read_bytes,
        compress,
    ):
        chain = chain_of(memory_disk())
        for rows in made(history, row):
            chain.add(rows)
        changes = {"block_bytes": block_bytes, "compress": compress, "stable_seq": stable_seq}
        with small_batches(read_bytes):
            result = compact(chain.task(purge_before_us=before_us, **changes), chain.disk)
        kept, purge_seq = model(chain.rows, before_us=before_us, stable_seq=stable_seq)
        assert [found._replace(hash_=None) for found in read_rows(chain.disk, OUT)] == kept
        identity = result.identity
        assert (identity.after_seq, identity.last_seq, identity.purge_seq) == (0, chain.last_seq, purge_seq)
        assert identity.deduplicated == (len(kept) < len(chain.rows))
        assert (result.rows, identity.rows) == (len(chain.rows), len(kept))
        assert result.superseded + result.purged == len(chain.rows) - len(kept)
        assert result.nbytes == len(chain.disk.content(OUT))
        assert result.foreign == ()

    @settings(deadline=None)
    @given(HISTORIES, st.integers(1, 400))
    def test_a_history_keeps_every_row(self, memory_disk, chain_of, row, read_rows, history, block_bytes):
        chain = chain_of(memory_disk())
        for rows in made(history, row):
            chain.add(rows)
        result = compact(chain.task(history=True, block_bytes=block_bytes), chain.disk)
        assert [found._replace(hash_=None) for found in read_rows(chain.disk, OUT)] == chain.rows
        assert not result.identity.deduplicated
        assert (result.superseded, result.purged, result.identity.purge_seq) == (0, 0, 0)

    @settings(deadline=None)
    @given(HISTORIES)
    def test_keys_with_one_hash_do_not_meet(self, memory_disk, chain_of, row, read_rows, model, history):
        chain = chain_of(memory_disk())
        for rows in made(history, row):
            chain.add([each._replace(hash_=len(each.key)) for each in rows])

        def hashes_of_keys(arrays):
            return np.diff(arrays.key_offsets).astype(np.uint64)

        with mock.patch("tailrace_server.compaction.worker.hashes_of_keys", hashes_of_keys):
            result = compact(chain.task(), chain.disk)
        assert result.foreign == ()
        kept, _ = model(chain.rows)
        assert read_rows(chain.disk, OUT) == kept

    def test_the_same_task_gives_the_same_bytes(self, small):
        task = small.task(purge_before_us=10**9)
        first = compact(task, small.disk)
        content = bytes(small.disk.content(OUT))
        discard(task, small.disk)
        assert not small.disk.exists(OUT)
        assert compact(task, small.disk) == first
        assert small.disk.content(OUT) == content

    def test_bytes_are_counted_as_they_are_read_and_written(self, small):
        seen = []
        result = compact(small.task(), small.disk, seen.append)
        blocks = sum(Segment.open(small.disk, path).read_blocks(0, 1 << 20)[0][0].nbytes for path in small.paths)
        # Scanned, and read to be written.
        assert sum(seen) > result.nbytes + 2 * blocks

    def test_small_blocks_become_large_ones(self, chain, row):
        chain.add([row(seq, b"%d" % seq, b"v" * 100) for seq in range(1, 301)], block_rows=1)
        compact(chain.task(), chain.disk)
        assert Segment.open(chain.disk, OUT).blocks == 1

    @pytest.mark.parametrize("history", [False, True])
    def test_no_block_has_rows_of_two_branches(self, chain, row, history):
        chain.add([row(seq, b"%d" % (seq % 7), b"v") for seq in range(1, 31)])
        chain.add([row(seq, b"%d" % (seq % 7), b"v") for seq in range(31, 61)])
        compact(chain.task(cuts=(0, 12, 30, 47, 60, 99), history=history), chain.disk)
        segment = Segment.open(chain.disk, OUT)
        blocks, _ = segment.read_blocks(0, 1 << 20)
        ends = [(block.header.first_seq, block.header.last_seq) for block in blocks]
        assert not [cut for cut in (12, 30, 47) for first, last in ends if first <= cut < last]
        assert len(blocks) <= 4
        assert segment.verify() == []
        segment.close()

    def test_nothing_is_left_of_it(self, chain, row, read_rows):
        chain.add([row(1, b"a", b"1"), row(2, b"a", None)])
        result = compact(chain.task(purge_before_us=1_000), chain.disk)
        assert read_rows(chain.disk, OUT) == []
        assert (result.identity.rows, result.identity.purge_seq, result.identity.last_seq) == (0, 2, 2)

    def test_segments_without_rows(self, chain, row, read_rows):
        chain.add([], last_seq=5)
        chain.add([row(6, b"a", b"1")])
        chain.add([], last_seq=9)
        compact(chain.task(), chain.disk)
        assert [found.seq for found in read_rows(chain.disk, OUT)] == [6]


class TestIdentity:
    def test_it_takes_the_place_of_its_inputs(self, small, chain_of):
        identities = [Segment.open(small.disk, path).identity for path in small.paths]
        result = compact(small.task(first=1), small.disk).identity
        assert (result.after_seq, result.last_seq) == (3, 7)
        assert result.base_id == identities[0].segment_id
        assert set(result.included_ids) == {identities[1].segment_id, identities[2].segment_id}
        assert (result.feed_id, result.branch, result.is_major) == (identities[2].feed_id, identities[2].branch, False)
        assert compact(small.task(output="/feed/0/major.seg"), small.disk).identity.base_id == NO_BASE

    def test_purge_seq_and_missing_rows_stay(self, chain, row):
        chain.add([row(9, b"a", b"1")], purge_seq=7, deduplicated=True)
        chain.add([row(10, b"b", b"1")])
        result = compact(chain.task(), chain.disk).identity
        assert (result.purge_seq, result.deduplicated) == (7, True)

    def test_what_was_included_before_is_included_still(self, chain, row):
        chain.add([row(1, b"a", b"1")], included_ids=(b"1" * 16, b"2" * 16))
        chain.add([row(2, b"b", b"1")], included_ids=(b"3" * 16, b"4" * 16))
        ids = compact(chain.task(), chain.disk).identity.included_ids
        newest, oldest = b"%016d" % 2, b"%016d" % 1
        assert ids == (newest, b"3" * 16, b"4" * 16, oldest, b"1" * 16, b"2" * 16)

    def test_the_ids_that_a_newer_segment_may_be_based_on_come_first(self, chain, row):
        before = tuple(b"before %09d" % number for number in range(INCLUDED_IDS_MAX))
        for number in range(INPUTS_MAX):
            chain.add([row(number + 1, b"a", b"1")], included_ids=before if number == INPUTS_MAX - 1 else ())
        ids = compact(chain.task(), chain.disk).identity.included_ids
        assert len(ids) == INCLUDED_IDS_MAX
        assert ids[:2] == (b"%016d" % INPUTS_MAX, before[0])
        assert {b"%016d" % (number + 1) for number in range(INPUTS_MAX)} < set(ids)

    def test_the_base_of_the_segment_behind_is_never_left_out(self, chain, row):
        """The oldest segment is compacted again and again, as its tombstones age; the one behind it never is."""
        first = chain.add([row(1, b"a", b"1")])
        for number in range(2 * INCLUDED_IDS_MAX):
            task = chain.task(segment_id=b"again %010d" % number, next_base_id=first.segment_id)
            output = f"{chain.directory}/again-{number}.seg"
            made = compact(task._replace(output=output), chain.disk).identity
            chain.paths[:] = [output]
            assert first.segment_id in made.included_ids
        assert len(made.included_ids) <= INCLUDED_IDS_MAX

    def test_a_manifest_can_name_it(self, small):
        result = compact(small.task(), small.disk)
        entry = entry_of(result.identity, result.nbytes)
        assert (entry.after_seq, entry.last_seq, entry.rows, entry.nbytes) == (0, 7, 4, result.nbytes)


class TestPurge:
    """Hazard 12: a tombstone that goes too early leaves its key alive somewhere."""

    def test_never_without_the_oldest_segment(self, small):
        with pytest.raises(BadTask, match="a compaction of the oldest segment"):
            compact(small.task(first=1, purge_before_us=10**9), small.disk)
        # Nor where the task says that they do, and they don't.
        with pytest.raises(BadTask, match="begins after seq 3, so it is not the oldest"):
            compact(small.task(first=1, purge_before_us=10**9, is_major=True), small.disk)
        assert not small.disk.exists(OUT)

    def test_a_minor_compaction_keeps_the_tombstone_that_hides_an_older_put(self, small, read_rows):
        compact(small.task(first=1), small.disk)
        assert (4, b"deleted", None) in [found[:3] for found in read_rows(small.disk, OUT)]

    def test_never_above_the_stable_seq(self, small, read_rows):
        result = compact(small.task(purge_before_us=10**9, stable_seq=3), small.disk)
        assert result.identity.purge_seq == 0
        assert 4 in [found.seq for found in read_rows(small.disk, OUT)]
        result = compact(small.task(purge_before_us=10**9, stable_seq=4, output="/feed/0/2.out"), small.disk)
        assert result.identity.purge_seq == 4
        assert 4 not in [found.seq for found in read_rows(small.disk, "/feed/0/2.out")]

    def test_never_before_it_is_old(self, small):
        assert compact(small.task(purge_before_us=999), small.disk).purged == 0

    def test_a_tombstone_with_a_newer_put_is_superseded_and_raises_nothing(self, chain, row):
        chain.add([row(1, b"a", b"1"), row(2, b"a", None), row(3, b"a", b"3")])
        result = compact(chain.task(purge_before_us=10**9), chain.disk)
        assert (result.superseded, result.purged, result.identity.purge_seq) == (2, 0, 0)


class TestRefusals:
    def test_segments_that_are_no_neighbours(self, small):
        task = small.task()
        with pytest.raises(BadTask, match="only neighbours can be compacted"):
            compact(task._replace(inputs=(small.paths[0], small.paths[2])), small.disk)
        with pytest.raises(BadTask, match="only neighbours can be compacted"):
            compact(task._replace(inputs=(small.paths[1], small.paths[0])), small.disk)

    def test_segments_of_different_partitions(self, chain, row):
        chain.add([row(1, b"a", b"1")])
        chain.add([], last_seq=2, partition=1)
        with pytest.raises(BadTask, match="different partitions"):
            compact(chain.task(), chain.disk)

    def test_a_segment_that_is_not_there(self, small):
        with pytest.raises(FileNotFoundError):
            compact(small.task()._replace(inputs=("/feed/0/nowhere.seg",)), small.disk)

    def test_an_output_that_is_there(self, small):
        compact(small.task(), small.disk)
        with pytest.raises(FileExistsError):
            compact(small.task(), small.disk)


class TestDamage:
    def test_every_byte_of_the_blocks(self, small):
        """What is read and is damaged stops the compaction, and the error says where; nothing wrong comes out."""
        [block], _ = Segment.open(small.disk, small.paths[1]).read_blocks(0, 1)
        for offset in range(64, 64 + block.nbytes):
            disk = small.disk.fork()
            disk.flip(small.paths[1], 8 * offset + offset % 8)
            with pytest.raises(SegmentDamaged) as caught:
                compact(small.task(), disk)
            assert (caught.value.path, caught.value.offset) == (small.paths[1], 64)
            assert not disk.exists(OUT)
            assert not disk.exists(OUT + ".new")

    def test_a_disk_that_cannot_read(self, small):
        small.disk.fail("read_at", where=small.paths[2])
        with pytest.raises(SegmentDamaged, match="Input/output error"):
            compact(small.task(), small.disk)
        small.disk.before = None
        assert not small.disk.exists(OUT + ".new")

    def test_columns_that_break_their_format_under_good_checksums(self, small):
        """The block that is wrong is named, though several are opened together."""
        [good], _ = Segment.open(small.disk, small.paths[0]).read_blocks(0, 1)
        body = bytearray(good.body)
        body[8 * good.rows + 4 : 8 * good.rows + 8] = b"\xff" * 4  # where the second key begins
        header = good.header._replace(body_sum=sum_of(bytes(body)))
        bad = Block(header, header.pack(), bytes(body))
        batch = RowBatch(Segment.open(small.disk, small.paths[0]), 0, 64, 0, [good, bad])
        with pytest.raises(SegmentDamaged, match="key offsets") as caught:
            batch.arrays()
        assert (caught.value.path, caught.value.offset) == (small.paths[0], 64 + good.nbytes)


class TestCrashes:
    def count(self, chain, task):
        disk = chain.disk.fork()
        before = disk.changes
        compact(task, disk)
        return disk.changes - before

    @pytest.mark.parametrize("torn_bytes", [0, 100])
    def test_at_every_call(self, small, torn_bytes, read_rows, model):
        task, inputs = small.task(), small.contents()
        kept, _ = model(small.rows)
        calls = self.count(small, task)
        assert calls >= 5
        for number in range(calls + 1):
            for seed in range(5):
                disk = small.disk.fork()
                disk.torn_bytes = torn_bytes
                disk.crash_at(number)
                try:
                    compact(task, disk)
                except disk.Crashed:
                    assert number < calls
                disk.cut_power(random.Random(f"{number}, {seed}"))
                for path, content in inputs.items():
                    assert disk.content(path) == content
                if disk.exists(OUT):
                    assert [found._replace(hash_=None) for found in read_rows(disk, OUT)] == kept
                assert set(disk.names("/feed/0")) <= {"1.seg", "2.seg", "3.seg", "out.seg", "out.seg.new"}
                discard(task, disk)
                assert disk.names("/feed/0") == ["1.seg", "2.seg", "3.seg"]

    @pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
    def test_a_call_that_fails(self, small, code):
        task, inputs = small.task(), small.contents()
        disk = small.disk.fork()
        before = disk.calls
        compact(task, disk)
        failed = 0
        for number in range(disk.calls - before):
            disk = small.disk.fork()
            disk.fail_at(number, code)
            try:
                compact(task, disk)
            except (OSError, NoSpace, SegmentDamaged):
                failed += 1
                # Only a directory whose fsync failed may keep the name.
                assert not disk.exists(OUT + ".new")
            for path, content in inputs.items():
                assert disk.content(path) == content
        assert failed >= 5

    def test_a_full_disk(self, small):
        small.disk.size_bytes = small.disk.size_bytes - small.disk.free + 300
        with pytest.raises(NoSpace):
            compact(small.task(), small.disk)
        assert small.disk.names("/feed/0") == ["1.seg", "2.seg", "3.seg"]

    def test_who_counts_the_bytes_may_stop_it(self, small):
        class Stop(Exception):
            pass

        def stop_after(count):
            left = [count]

            def on_bytes(nbytes):
                left[0] -= 1
                if left[0] < 0:
                    raise Stop

            return on_bytes

        for count in range(20):
            try:
                compact(small.task(), small.disk, stop_after(count))
                break
            except Stop:
                assert small.disk.names("/feed/0") == ["1.seg", "2.seg", "3.seg"]
        assert count > 5


@settings(max_examples=examples(30), deadline=None)
@given(HISTORIES)
def test_folding_step_by_step_comes_to_the_same_as_folding_at_once(
    memory_disk, chain_of, row, read_rows, model, history
):
    chain = chain_of(memory_disk())
    for rows in made(history, row):
        chain.add(rows)
    if len(chain.paths) > 1:
        compact(chain.task(first=1, output="/feed/0/minor.seg", segment_id=b"m" * 16), chain.disk)
        compact(chain.task()._replace(inputs=(chain.paths[0], "/feed/0/minor.seg")), chain.disk)
    else:
        compact(chain.task(), chain.disk)
    assert [found._replace(hash_=None) for found in read_rows(chain.disk, OUT)] == model(chain.rows)[0]
