"""A share that is cut into parts: every row once, each key's rows in their order, whatever the pieces and the tries."""

from __future__ import annotations

import itertools
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.memory_disk import MemoryDisk

from tailrace.block import encode_block
from tailrace.errors import TooLarge
from tailrace.model.hashing import HASH_MAX, key_hash
from tailrace_server.publishing import cutting, spreading
from tailrace_server.publishing.cutting import CutShare
from tailrace_server.publishing.stage_file import StagedBlock

HASHES = (0, HASH_MAX)


class Staged:
    """Rows in stages, each a list of blocks."""

    def __init__(self, stages, *, compress=False):
        self._blocks = {
            number.to_bytes(16): [
                encode_block([key for key, _ in rows], [value for _, value in rows], partition=0, compress=compress)
                for rows in blocks
                if rows
            ]
            for number, blocks in enumerate(stages)
        }

    @property
    def share(self):
        entries = {
            id: [StagedBlock(0, block.rows, number, block.nbytes) for number, block in enumerate(blocks)]
            for id, blocks in self._blocks.items()
        }
        return [(id, found) for id, found in entries.items() if found]

    def read(self, id, entries):
        return [self._blocks[id][entry.offset] for entry in entries]


def cut_share(staged, bytes_max, after_hash=-1, hashes=HASHES):
    disk = MemoryDisk()
    disk.make_directory("/data")
    file = disk.create("/data/x.cut")
    cut = CutShare(staged.share, staged.read, file, 0, hashes=hashes, after_hash=after_hash, bytes_max=bytes_max)
    while not cut.advance():
        pass
    return cut


def rows_of(blocks):
    found = []
    for block in blocks:
        columns = block.open_columns()
        found += zip(columns.keys(), columns.values(), strict=True)
    return found


def parts_of(cut):
    """All parts, each (rows, through)."""
    found = []
    while not found or found[-1][1] < HASH_MAX:
        part = cut.part()
        found.append((rows_of(part.blocks), part.through))
        cut.taken(part)
    return found


def by_key(rows):
    found = {}
    for key, value in rows:
        found.setdefault(key, []).append(value)
    return found


KEYS = st.integers(0, 30).map(lambda number: b"key %d" % number)
VALUES = st.one_of(st.none(), st.binary(max_size=60), st.integers(0, 9).map(lambda size: b"x" * size))


@st.composite
def batches(draw):
    """Rows whose order within a key tells, and two ways to have them in stages, blocks and tasks."""
    rows = [
        (draw(KEYS), None if (value := draw(VALUES)) is None else b"%d " % number + value)
        for number in range(draw(st.integers(1, 60)))
    ]
    return rows, draw_pieces(draw, rows), draw_pieces(draw, rows)


def draw_pieces(draw, rows):
    """Each key's rows by one task, in order; tasks in any order."""
    tasks = draw(st.integers(1, 3))
    order = draw(st.permutations(range(tasks)))
    shares = [[row for row in rows if key_hash(row[0]) % tasks == task] for task in order]
    stages = []
    for share in shares:
        cuts = sorted(draw(st.lists(st.integers(0, len(share)), max_size=4)))
        stages.append([share[a:b] for a, b in itertools.pairwise([0, *cuts, len(share)])])
    return stages


@settings(deadline=None)
@given(
    batches(), st.integers(500, 3_000), st.integers(0, 5), st.integers(200, 2_000), st.integers(1, 40), st.booleans()
)
def test_each_row_comes_once_and_keys_keep_their_order(batch, bytes_max, taken, held, buckets, compress):
    """The first try is cut off behind any part; the second has the rows in other pieces."""
    rows, first, second = batch
    with (
        mock.patch.object(spreading, "HELD_BYTES_MAX", held),
        mock.patch.object(spreading, "STEP_BYTES", 300),
        mock.patch.object(cutting, "READ_BYTES", 300),
        mock.patch.object(cutting, "BUCKETS_MAX", max(buckets, 2)),
    ):
        try:
            done = parts_of(cut_share(Staged(first, compress=compress), bytes_max))[:taken]
            after_hash = done[-1][1] if done else -1
            if after_hash < HASH_MAX:
                done += parts_of(cut_share(Staged(second, compress=compress), bytes_max - 100, after_hash))
        except TooLarge:
            largest = max(
                sum(len(key) + len(value or b"") + 16 for key, value in rows if key == some) for some, _ in rows
            )
            assert largest > (bytes_max - 200) / 8  # every row may have a block of its own, with its header
            return
    found = [row for part, _ in done for row in part]
    assert len(found) == len(rows)
    assert by_key(found) == by_key(rows)
    assert [through for _, through in done] == sorted({through for _, through in done})
    for before, (part, through) in itertools.pairwise([([], -1), *done]):
        assert all(before[1] < key_hash(key) <= through for key, _ in part)


def test_parts_have_no_more_than_their_bytes():
    rows = [(b"key %d" % number, b"%d" % number * 20) for number in range(2_000)]
    staged = Staged([[rows[begin : begin + 100] for begin in range(0, 2_000, 100)]])
    cut = cut_share(staged, 20_000)
    sizes = []
    while cut.after_hash < HASH_MAX:
        part = cut.part()
        sizes.append(sum(block.nbytes for block in part.blocks))
        cut.taken(part)
    assert max(sizes) <= 20_000
    assert len(sizes) <= sum(sizes) / 20_000 * 1.6


def test_a_bucket_with_keys_of_many_rows_is_cut_by_its_keys():
    """Two keys beside each other, which fit into a part each, and not both."""
    with mock.patch.object(cutting, "BUCKETS_MAX", 2):
        rows = [(b"key %d" % (number % 8), b"v" * 100) for number in range(160)]
        parts = parts_of(cut_share(Staged([[rows]]), 4_000))
    assert by_key(row for part, _ in parts for row in part) == by_key(rows)
    assert len(parts) >= 4


def test_a_key_that_does_not_fit_is_refused_before_anything_is_written():
    rows = [(b"small %d" % number, b"v") for number in range(100)] + [(b"hot", b"v" * 100)] * 100
    cut = None
    with pytest.raises(TooLarge, match=r"one key, b'hot'.*: keep the last change of each key"):
        cut = cut_share(Staged([[rows]]), 4_000)
    assert cut is None


def test_a_key_is_measured_as_it_is_stored():
    rows = [(b"hot", b"v" * 10_000)] * 10
    parts = parts_of(cut_share(Staged([[rows], [rows]], compress=True), 4_000))
    assert sum(len(part) for part, _ in parts) == 20


def test_nothing_above_what_is_there():
    cut = cut_share(Staged([[[(b"key", b"v")]]]), 1_000, after_hash=key_hash(b"key"))
    assert parts_of(cut) == [([], HASH_MAX)]
    cut = cut_share(Staged([[[(b"key", b"v")]]]), 1_000, after_hash=HASH_MAX)
    assert parts_of(cut) == [([], HASH_MAX)]


def test_what_is_left_alone_holds_no_rows():
    staged = Staged([[[(b"key %d" % number, b"v")] for number in range(50)]])
    with mock.patch.object(cutting, "READ_BYTES", 1):
        disk = MemoryDisk()
        disk.make_directory("/data")
        file = disk.create("/data/x.cut")
        cut = CutShare(staged.share, staged.read, file, 0, hashes=HASHES, after_hash=-1, bytes_max=1_000)
        assert not cut.advance()
        assert file.size() == 0
        cut.rest()
        assert file.size() > 0
        while not cut.advance():
            cut.rest()
    assert sum(len(part) for part, _ in parts_of(cut)) == 50
    cut.close()
    cut.close()
