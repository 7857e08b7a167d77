import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.block import Block, encode_block
from tailrace_server.tree import tree as module
from tailrace_server.tree.aging import chunk_of
from tailrace_server.tree.memory import HEADER_OBJECT_BYTES, memory_of_all
from tailrace_server.tree.open_blocks import OpenBlocks
from tailrace_server.tree.tree import CHUNK_BLOCKS_MAX, Tree


def blocks(row_counts, first_seq=1):
    made = []
    for rows in row_counts:
        block = encode_block([b"k"] * rows, [b"v"] * rows, partition=0).stamped(first_seq, 1)
        made.append(block)
        first_seq += rows
    return made


def grown(tree, made):
    for block in made:
        tree = tree.append(block)
    return tree


def held(tree):
    return list(tree.blocks_after(0))


@settings(max_examples=50)
@given(before=st.integers(0, 9), more=st.integers(0, 20), chunk_blocks_max=st.sampled_from([1, 3, CHUNK_BLOCKS_MAX]))
def test_many_blocks_at_once_make_the_tree_that_one_at_a_time_makes(before, more, chunk_blocks_max):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_BLOCKS_MAX", chunk_blocks_max)
        made = blocks([2] * (before + more))
        tree, other = grown(Tree(), made[:before]).extended(made[before:]), grown(Tree(), made)
        tree.check()
        assert held(tree) == made
        assert list(tree._chunks) == list(other._chunks)
        assert (tree.last_seq, tree.nbytes, tree.memory_bytes) == (other.last_seq, other.nbytes, other.memory_bytes)


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 3 blocks, so that a few blocks make a tree of many."""
    monkeypatch.setattr(module, "CHUNK_BLOCKS_MAX", 3)


@settings(max_examples=examples(200))
@given(
    st.lists(st.integers(1, 4), max_size=40),
    st.lists(st.integers(0, 120), max_size=3),
    st.sampled_from([1, 3, CHUNK_BLOCKS_MAX]),
)
def test_a_tree_is_a_list_of_blocks(row_counts, drops, chunk_blocks_max):
    before, module.CHUNK_BLOCKS_MAX = module.CHUNK_BLOCKS_MAX, chunk_blocks_max
    try:
        check_against_a_list(blocks(row_counts), drops)
    finally:
        module.CHUNK_BLOCKS_MAX = before


def check_against_a_list(made, drops):
    tree, rest = grown(Tree(), made), made
    for drop in drops:
        tree = tree.drop_through(drop)
        rest = [block for block in rest if block.header.last_seq > drop]
        assert held(tree) == rest, "exactly what ends at or below it goes"
        check_blocks_of(tree, range(tree.base_seq + 1, tree.last_seq + 1))
        tree.check()
    last_seq = made[-1].header.last_seq if made else 0
    tree.check()
    assert tree.last_seq == last_seq, "dropping does not change where it ends"
    assert tree.base_seq == (rest[0].header.first_seq - 1 if rest else last_seq)
    assert tree.first_seq == (rest[0].header.first_seq if rest else 0)
    assert (tree.block_count, tree.nbytes) == (len(rest), sum(block.nbytes for block in rest))
    assert list(tree.newest_first()) == rest[::-1]
    for seq in range(-1, tree.last_seq + 3):
        assert list(tree.blocks_after(seq)) == [block for block in rest if block.header.last_seq > seq]
        holding = [block for block in rest if block.header.first_seq <= seq <= block.header.last_seq]
        assert tree.find(seq) is (holding[0] if holding else None)
    for step in (1, 3, 40):
        check_blocks_of(tree, range(tree.base_seq + 1, tree.last_seq + 1, step))
    more = blocks([2] * 7, last_seq + 1)
    grown(tree, more).check()
    assert held(grown(tree, more)) == [*rest, *more]


def check_blocks_of(tree, seqs):
    found, begin = [], 0
    for block, end in tree.blocks_of(seqs):
        assert end > begin
        found += [block] * (end - begin)
        begin = end
    assert all(block is tree.find(seq) for block, seq in zip(found, seqs, strict=True))
    firsts, begin = [], 0
    for rows, end in tree.rows_of(seqs, OpenBlocks()):
        assert end > begin
        firsts += [rows.first_seq] * (end - begin)
        begin = end
    assert firsts == [block.header.first_seq for block in found]


@pytest.mark.usefixtures("small_chunks")
def test_rows_are_found_after_merges_and_appends():
    tree = grown(Tree(), blocks([1] * 20))
    for _ in range(2):
        seqs = range(tree.base_seq + 1, tree.last_seq + 1)
        check_blocks_of(tree, seqs)
        tree = tree.merge_aged(tree.last_seq)
        check_blocks_of(tree, seqs)
        tree.check()
        tree = grown(tree, blocks([2] * 9, tree.last_seq + 1))
        check_blocks_of(tree, [tree.first_seq])  # only the blocks before are listed
        tree.check()
    assert tree.block_count < 40


def test_a_few_rows_are_not_worth_a_longer_list(monkeypatch):
    """Else each look-up after a put would copy the list of a whole write queue: 2.5 ms for 16,000 blocks."""
    monkeypatch.setattr(module, "_COPIED_FOR_A_SEQ", 10)
    tree = grown(Tree(), blocks([2] * 20))
    check_blocks_of(tree, range(1, 41))
    tree = grown(tree, blocks([2], tree.last_seq + 1))
    listed = tree._listed
    check_blocks_of(tree, [7, tree.last_seq])
    assert tree._listed is not listed
    for seqs in ([tree.last_seq], [3, tree.last_seq]):
        tree = grown(tree, blocks([2], tree.last_seq + 1))
        listed = tree._listed
        check_blocks_of(tree, [*seqs[:-1], tree.last_seq])
        assert tree._listed is listed
    tree.check()


def test_an_empty_tree():
    tree = Tree()
    tree.check()
    assert (tree.first_seq, tree.last_seq, tree.block_count, tree.nbytes, tree.memory_bytes) == (0, 0, 0, 0, 0)
    assert tree.find(0) is tree.find(1) is None
    assert held(tree) == list(tree.newest_first()) == []
    assert held(tree.drop_through(10)) == []
    assert tree.drop_through(10).last_seq == 0


def test_an_empty_tree_knows_where_it_ends():
    flushed = grown(Tree(), blocks([3, 2])).drop_through(5)
    for tree in (flushed, Tree(5), Tree(base_seq=5)):
        tree.check()
        assert (tree.base_seq, tree.last_seq, tree.first_seq, tree.block_count) == (5, 5, 0, 0)
        assert tree.find(5) is None
        with pytest.raises(AssertionError, match="contiguous"):
            tree.append(blocks([1])[0])
        (block,) = blocks([2], 6)
        assert tree.append(block).first_seq == 6
        assert tree.append(block).base_seq == 5


def test_a_block_that_ends_above_what_is_dropped_stays_whole():
    tree = grown(Tree(), blocks([3, 4, 2])).drop_through(5)
    tree.check()
    assert (tree.base_seq, tree.first_seq) == (3, 4)
    assert tree.find(4) is tree.find(7)


@pytest.mark.usefixtures("small_chunks")
def test_a_root_never_changes():
    made = blocks([2] * 20)
    roots = [Tree()]
    for block in made:
        roots.append(roots[-1].append(block))
    dropped = [root.drop_through(15) for root in roots]
    for count, root in enumerate(roots):
        assert held(root) == made[:count]
        root.check()
    for tree in dropped:
        tree.check()
    assert held(dropped[-1])[0] is made[7]


@pytest.mark.usefixtures("small_chunks")
def test_a_walk_goes_on_over_the_root_that_it_began_with():
    made = blocks([1] * 10)
    tree = grown(Tree(), made[:7])
    walk = tree.blocks_after(2)
    seen = [next(walk)]
    tree = grown(tree, made[7:]).drop_through(6)
    assert seen + list(walk) == made[2:7]
    assert held(tree) == made[6:]


def test_blocks_have_to_be_contiguous():
    first, _, third = blocks([2, 2, 2])
    with pytest.raises(AssertionError, match="contiguous"):
        Tree().append(first).append(third)


@pytest.mark.usefixtures("small_chunks")
def test_memory_follows_every_change():
    """Bodies of their own, views of buffers of their own, and neighbours in one buffer."""
    made = blocks([3] * 20)
    shared = memoryview(b"".join(block.tobytes() for block in made[10:]))
    offset = 0
    for index in range(10, 20):
        made[index] = Block.parse_at(shared, offset)
        offset += made[index].nbytes
    made[3:5] = [Block.parse(memoryview(block.tobytes())) for block in made[3:5]]
    tree = Tree()
    for count, block in enumerate(made):
        tree = tree.append(block)
        tree.check()
        if count < 10:
            in_chunks = sum(len(chunk.blocks) for chunk in tree._chunks)
            assert tree.memory_bytes == memory_of_all(made[: count + 1]) - HEADER_OBJECT_BYTES * in_chunks
    for seq in range(62):
        tree.drop_through(seq).check()
    assert tree.drop_through(60).memory_bytes == 0


def test_blocks_of_a_full_chunk_lose_their_headers_one_by_one():
    count = CHUNK_BLOCKS_MAX
    made = blocks([1] * 2 * count)
    tree = grown(Tree(), made[:count])
    for more, each in enumerate(made[count:], 1):
        tree = tree.append(each)
        kept = [block.header is block.header for block in held(tree)]
        assert kept == [number >= more for number in range(count + more)]
    tree.check()


def test_check_notices_what_does_not_hold():
    first, second, third = blocks([2, 2, 2])

    def broken(**parts):
        tree = Tree().append(first).append(second)
        for name, value in parts.items():
            setattr(tree, name, value)
        return tree

    def chunks(*made):
        return {
            "_chunks": module.pvector(made),
            "_tail": (),
            "last_seq": 6,
            "_sums": module._Sums().changed((), made),
            "memory_bytes": module._Sums().changed((), made).memory_bytes,
        }

    good = chunk_of([first, second, third])
    for parts, problem in (
        ({"_tail_nbytes": 1}, "in the tail"),
        ({"memory_bytes": 1}, "in the tail"),
        ({"last_seq": 5}, "noted is 5"),
        ({"base_seq": 1}, "a gap before seq 1"),
        ({"_tail": (first,) * CHUNK_BLOCKS_MAX}, "the tail has 64 blocks"),
        ({"_aging": module.Aging(0, 1)}, "of 0 chunks"),
        (chunks(chunk_of([first, third])), "a gap before seq 5"),
        (chunks(good._replace(first_seq=2)), "misstates its first seq"),
        (chunks(good._replace(nbytes=2)), "misstates"),
        (chunks(good._replace(blocks=())), "has 0 blocks"),
        (chunks(good) | {"_sums": module._Sums()}, "blocks=3"),
        (chunks(good) | {"_tail_nbytes": 0, "_aging": module.Aging(0, 1)}, "waiting_bytes=0"),
    ):
        with pytest.raises(AssertionError, match=problem):
            broken(**parts).check()


def test_the_newest_blocks_are_those_of_a_walk_or_none():
    tree = Tree()
    for seq in range(1, 3 * CHUNK_BLOCKS_MAX + 10):
        tree = tree.append(encode_block([b"k"], [b"v"], partition=0).stamped(seq, 1))
        for after_seq in {0, seq - 1, seq, seq - 2, seq - CHUNK_BLOCKS_MAX + 1, seq - 2 * CHUNK_BLOCKS_MAX - 1}:
            if after_seq < 0:
                continue
            found = tree.newest_above(after_seq)
            assert found in ((), tuple(tree.blocks_after(after_seq)))
            assert found or seq == after_seq or seq - after_seq >= CHUNK_BLOCKS_MAX
    assert Tree().newest_above(0) == ()
    assert tree.drop_through(tree.last_seq).newest_above(tree.last_seq) == ()
