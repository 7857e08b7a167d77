import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.block import encode_block
from tailrace_server.tree import tree as module
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


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 3 blocks, so that a few blocks make a tree of many."""
    monkeypatch.setattr(module, "CHUNK_BLOCKS_MAX", 3)


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=40),
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
    tree = grown(Tree(), made)
    for drop in drops:
        smaller = tree.drop_through(drop)
        rest = held(smaller)
        assert rest == held(tree)[len(held(tree)) - len(rest) :], "only the head may go"
        assert rest, "the last chunk stays"
        dropped = held(tree)[: len(held(tree)) - len(rest)]
        assert all(block.header.last_seq <= drop for block in dropped)
        tree = smaller
    tree.check()
    rest = held(tree)
    assert (tree.first_seq, tree.last_seq) == (rest[0].header.first_seq, rest[-1].header.last_seq)
    assert (tree.block_count, tree.nbytes) == (len(rest), sum(block.nbytes for block in rest))
    assert list(tree.newest_first()) == rest[::-1]
    for seq in range(tree.last_seq + 3):
        assert list(tree.blocks_after(seq)) == [block for block in rest if block.header.last_seq > seq]
        holding = [block for block in rest if block.header.first_seq <= seq <= block.header.last_seq]
        assert tree.find(seq) is (holding[0] if holding else None)


def test_an_empty_tree():
    tree = Tree()
    tree.check()
    assert (tree.first_seq, tree.last_seq, tree.block_count, tree.nbytes) == (0, 0, 0, 0)
    assert tree.find(0) is tree.find(1) is None
    assert held(tree) == list(tree.newest_first()) == []
    assert held(tree.drop_through(10)) == []


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
    assert held(dropped[-1])[0] is made[6]


@pytest.mark.usefixtures("small_chunks")
def test_a_walk_goes_on_over_the_root_that_it_began_with():
    made = blocks([1] * 10)
    tree = grown(Tree(), made[:7])
    walk = tree.blocks_after(2)
    seen = [next(walk)]
    tree = grown(tree, made[7:]).drop_through(6)
    assert seen + list(walk) == made[2:7]


def test_blocks_have_to_be_contiguous():
    first, _, third = blocks([2, 2, 2])
    with pytest.raises(AssertionError, match="contiguous"):
        Tree().append(first).append(third)


def test_a_tree_may_begin_anywhere():
    tree = grown(Tree(), blocks([3, 2], first_seq=101))
    tree.check()
    assert (tree.first_seq, tree.last_seq) == (101, 105)
    assert tree.find(100) is None


def test_check_notices_what_does_not_hold():
    first, second, third = blocks([2, 2, 2])
    tree = Tree().append(first).append(second)
    with pytest.raises(AssertionError, match="2 blocks, 3 counted"):
        Tree(tree._chunks, 3, tree.nbytes).check()
    with pytest.raises(AssertionError, match="bytes"):
        Tree(tree._chunks, 2, tree.nbytes + 1).check()
    for chunks, problem in (
        ([module.Chunk(1, (first, third))], "a gap before seq 5"),
        ([module.Chunk(2, (first,))], "misstates its first seq"),
        ([module.Chunk(1, ())], "has 0 blocks"),
    ):
        with pytest.raises(AssertionError, match=problem):
            Tree(module.pvector(chunks), 0, 0).check()
