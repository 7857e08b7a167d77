import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import encode_block
from tailrace.hashing import key_hash
from tailrace_server.tree import key_index as module
from tailrace_server.tree.key_index import SLICE_ROWS, KeyIndex, OpenBlocks
from tailrace_server.tree.tree import Tree

KEYS = [b"a", b"b", b"ab", b"c" * 100]


def never():
    return False


def tree_of(batches, hash_of=key_hash, *, compress=True):
    tree, timestamp = Tree(), 1000
    for batch in batches:
        keys, values = [row[0] for row in batch], [row[1] for row in batch]
        block = encode_block(keys, values, partition=0, hashes=[hash_of(key) for key in keys], compress=compress)
        timestamp += 10
        tree = tree.append(block.stamped(tree.last_seq + 1, timestamp))
    return tree


def level_with(tree, index=None):
    index = KeyIndex() if index is None else index
    assert index.catch_up(tree, never)
    assert index.indexed_seq == tree.last_seq
    return index


def check_against_a_dict(batches, tree):
    index = level_with(tree)
    newest, seq = {}, 0
    for number, batch in enumerate(batches, 1):
        for key, value in batch:
            seq += 1
            newest[key] = (seq, 1000 + 10 * number, value)
    for key in KEYS:
        assert index.find(tree, key) == newest.get(key), key
    assert index.find(tree, b"never written") is None


batches = st.lists(
    st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=300)), min_size=1, max_size=20),
    min_size=1,
    max_size=8,
)


@given(batches, st.booleans())
def test_it_finds_the_newest_row_of_a_key(made, compress):
    check_against_a_dict(made, tree_of(made, compress=compress))


@given(batches, st.sampled_from([lambda key: 7, lambda key: len(key) % 2]))
def test_keys_of_equal_hash_are_told_apart(made, hash_of):
    before, module.key_hash = module.key_hash, hash_of
    try:
        check_against_a_dict(made, tree_of(made, hash_of))
    finally:
        module.key_hash = before


def test_a_wrong_hash_of_a_producer_hides_no_other_key(monkeypatch):
    """Hashes are the producer's word: another key under the hash of b"a" comes after it, and b"a" is found still."""
    tree = tree_of([[(b"a", b"1")]])
    forged = encode_block([b"b"], [b"2"], partition=0, hashes=[key_hash(b"a")])
    tree = tree.append(forged.stamped(2, 2000))
    index = level_with(tree)
    assert index.find(tree, b"a").seq == 1
    assert index.find(tree, b"b") is None


def test_an_empty_tree_has_nothing():
    assert level_with(Tree()).find(Tree(), b"a") is None


def test_catching_up_goes_in_slices_and_goes_on_where_it_stopped():
    rows = 3 * SLICE_ROWS + 17
    keys = [b"%d" % (number % 5000) for number in range(rows)]
    tree = tree_of([list(zip(keys, keys, strict=True)), [(b"7", None)]])
    index, seen = KeyIndex(), []
    while not index.catch_up(tree, lambda: True):
        assert index.indexed_seq < tree.last_seq
        seen.append(index.indexed_seq)
    assert seen == [SLICE_ROWS, 2 * SLICE_ROWS, 3 * SLICE_ROWS, rows]
    newest = {key: seq for seq, key in enumerate(keys, 1)} | {b"7": rows + 1}
    for key, seq in newest.items():
        assert index.find(tree, key).seq == seq
    assert index.find(tree, b"7").value is None


def test_it_is_not_behind_the_tree_when_it_is_asked():
    tree = tree_of([[(b"a", b"1")]])
    with pytest.raises(AssertionError, match="behind the tree"):
        KeyIndex().find(tree, b"a")


def test_time_runs_out_only_where_something_is_left():
    tree = tree_of([[(b"a", b"1")]])
    assert KeyIndex().catch_up(tree, lambda: True)


def test_an_older_root_can_be_caught_up_with_while_the_tree_grows():
    first = tree_of([[(b"a", b"1")], [(b"b", b"1")]])
    index = level_with(first)
    both = first.append(encode_block([b"a"], [b"2"], partition=0).stamped(3, 2000))
    level_with(both, index)
    assert index.find(both, b"a").seq == 3
    assert index.find(both, b"b").seq == 2


def test_neighbours_in_a_compressed_block_are_found_in_one_opening(monkeypatch):
    rows = [(b"key %d" % number, b"v" * 50) for number in range(100)]
    tree = tree_of([rows, rows[:50]])
    index = level_with(tree)
    opened, opens = OpenBlocks(), []
    real = module.Block.open_columns
    monkeypatch.setattr(module.Block, "open_columns", lambda block: opens.append(block) or real(block))
    for number, (key, value) in enumerate(rows):
        found = index.find(tree, key, opened)
        assert (found.seq, found.value) == (101 + number if number < 50 else 1 + number, value)
    assert len(opens) == 2


def test_what_is_kept_open_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "OPEN_BYTES_MAX", 10_000)
    rows = [(b"key %d" % number, b"v" * 50) for number in range(100)]
    tree = tree_of([rows] * 5)
    opened = OpenBlocks()
    for block in tree.blocks_after(0):
        assert block.header.raw_bytes < 10_000 < 2 * block.header.raw_bytes
        opened.columns(block)
        assert len(opened._columns) == 1
