import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import Block, encode_block
from tailrace_server.offline.salvage import BadStretch, Salvage, cut_rows, proven_keys, read_segment
from tailrace_server.segment import SegmentIdentity, SegmentWriter

PATH = "/f/0/s.seg"


def block_of(first_seq, rows, name=b"k"):
    keys = [b"%b%d" % (name, first_seq + row) for row in range(rows)]
    return encode_block(keys, [b"v" * 20] * rows, partition=0, compress=False).stamped(first_seq, 7)


def segment_of(disk, blocks, last_seq=None):
    disk.make_directory("/f/0")
    last_seq = blocks[-1].header.last_seq if last_seq is None else last_seq
    identity = SegmentIdentity(b"f" * 16, 0, b"b" * 16, b"s" * 16, bytes(16), (), False, False, 0, last_seq, 0)
    writer = SegmentWriter(disk, PATH, identity)
    for block in blocks:
        writer.add(block)
    writer.finish()


@pytest.fixture
def disk(memory_disk):
    disk = memory_disk()
    segment_of(disk, [block_of(1, 10), block_of(11, 5), block_of(16, 10)])
    return disk


def places(items):
    return [(item.offset, item.first_seq, item.last_seq) for item in items if isinstance(item, BadStretch)]


def seqs_of(items):
    return [(item.header.first_seq, item.header.last_seq) for item in items if isinstance(item, Block)]


def test_with_the_index_each_block_stands_for_itself(disk):
    first = block_of(1, 10).nbytes
    disk.flip(PATH, 8 * (64 + first + 2))  # in the header of the second block
    items = list(read_segment(disk, PATH, 0))
    assert seqs_of(items) == [(1, 10), (16, 25)]
    assert places(items) == [(64 + first, 11, 15)]


def test_without_the_index_blocks_are_followed_by_their_lengths(disk):
    del disk.content(PATH)[-20:]
    items = list(read_segment(disk, PATH, 0))
    assert seqs_of(items) == [(1, 10), (11, 15), (16, 25)]
    first = block_of(1, 10).nbytes
    disk.flip(PATH, 8 * (64 + first + 200))  # in the body of the second block
    items = list(read_segment(disk, PATH, 0))
    assert seqs_of(items) == [(1, 10), (16, 25)]
    assert places(items)[0] == (64 + first, 11, 15)
    disk.flip(PATH, 8 * (64 + first + 2))  # and in its header
    assert seqs_of(read_segment(disk, PATH, 0)) == [(1, 10)]


def test_what_looks_like_a_block_inside_of_a_value_is_never_taken_for_one(memory_disk):
    forged = block_of(3, 1, b"forged").tobytes()
    disk = memory_disk()
    real = encode_block([b"k"], [forged], partition=0, compress=False).stamped(1, 7)
    segment_of(disk, [real, block_of(2, 1)])
    disk.flip(PATH, 8 * (64 + 2))
    del disk.content(PATH)[-20:]
    assert seqs_of(read_segment(disk, PATH, 0)) == []


def test_a_cut_file_ends_with_a_stretch_of_which_nothing_is_known(disk):
    del disk.content(PATH)[64 + block_of(1, 10).nbytes + 20 :]
    items = list(read_segment(disk, PATH, 0))
    assert seqs_of(items) == [(1, 10)]
    assert items[-1].first_seq == 0


@given(st.data())
def test_only_keys_that_are_right_are_told(data):
    block = block_of(1, 6)
    damaged = bytearray(block.tobytes())
    bit = data.draw(st.integers(8 * 96, 8 * len(damaged) - 1))
    damaged[bit >> 3] ^= 1 << (bit & 7)
    assert set(proven_keys(bytes(damaged))) <= set(block.columns().keys())


def test_a_damaged_value_leaves_all_keys_readable():
    block = block_of(1, 6)
    damaged = bytearray(block.tobytes())
    damaged[-1] ^= 1
    assert proven_keys(bytes(damaged)) == block.columns().keys()


def salvage(items, spare, last_seq=30, rows=None, why=""):
    taken = []
    one = Salvage(0, last_seq, taken.append, spare)
    for item in items:
        one.add(item)
    one.finish(why, rows)
    return [(b.header.first_seq, b.header.last_seq) for b in taken], [(r.first_seq, r.last_seq) for r in one.lost]


def bad(first_seq=0, last_seq=0):
    return BadStretch(64, first_seq, last_seq, last_seq - first_seq + 1 if first_seq else 0, (), "bad")


def nothing(first, last):
    return ()


def test_what_the_journal_has_not_is_lost():
    items = [block_of(1, 10), bad(11, 20), block_of(21, 10)]
    assert salvage(items, nothing) == ([(1, 10), (21, 30)], [(11, 20)])


def test_what_the_journal_has_is_put_in_cut_to_the_gap():
    items = [block_of(1, 10), bad(11, 20), block_of(21, 10)]
    spare = [block_of(8, 5), block_of(15, 3), block_of(19, 5)]
    taken, lost = salvage(items, lambda first, last: spare)
    assert taken == [(1, 10), (11, 12), (15, 17), (19, 20), (21, 30)]
    assert lost == [(13, 14), (18, 18)]


def test_seqs_that_a_compaction_has_dropped_are_not_lost():
    assert salvage([block_of(1, 10), block_of(15, 16)], nothing) == ([(1, 10), (15, 30)], [])
    assert salvage([block_of(1, 10), bad(13, 14), block_of(21, 10)], nothing)[1] == [(13, 14)]


def test_a_stretch_of_which_nothing_is_known_may_have_held_the_whole_gap():
    assert salvage([block_of(1, 10), bad(), bad(13, 14), block_of(21, 10)], nothing)[1] == [(11, 20)]
    assert salvage([block_of(1, 10), bad()], nothing)[1] == [(11, 30)]
    assert salvage([], nothing, why="missing")[1] == [(1, 30)]


def test_nothing_is_lost_where_all_rows_are_there():
    assert salvage([block_of(1, 10), bad()], nothing, rows=10)[1] == []


def test_blocks_outside_of_the_run_do_not_count():
    assert salvage([block_of(1, 10), block_of(5, 10), block_of(25, 10)], nothing)[0] == [(1, 10)]


@given(st.integers(1, 40), st.integers(1, 40))
def test_rows_are_cut_by_their_seqs(first, last):
    cut = cut_rows(block_of(10, 10), first, last)
    expected = [seq for seq in range(10, 20) if first <= seq <= last]
    assert ([] if cut is None else list(cut.columns().seqs())) == expected
