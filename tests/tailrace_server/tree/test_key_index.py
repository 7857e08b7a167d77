from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.block import Stamps, encode_block
from tailrace.model.hashing import key_hash
from tailrace_server.segment import ReadCache
from tailrace_server.tree import aging, open_blocks, tiers
from tailrace_server.tree import key_index as module
from tailrace_server.tree import tree as tree_module
from tailrace_server.tree.key_index import SLICE_ROWS, KeyIndex
from tailrace_server.tree.open_blocks import OpenBlocks
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


@contextmanager
def small_bounds():
    """Tiers, slices, chunks and merged blocks of a few rows."""
    values = {
        (module, "SLICE_ROWS"): 8,
        (module, "TIER_ROWS_MIN"): 5,
        (tiers, "TIER_ENTRIES_MAX"): 20,
        (tree_module, "CHUNK_BLOCKS_MAX"): 3,
        (aging, "WAITING_CHUNKS_MAX"): 3,
    }
    before = {key: getattr(*key) for key in values}
    for (place, name), value in values.items():
        setattr(place, name, value)
    try:
        yield
    finally:
        for (place, name), value in before.items():
            setattr(place, name, value)


MANY_KEYS = [b"key %d" % number for number in range(40)]
rows = st.tuples(st.sampled_from(MANY_KEYS), st.none() | st.binary(max_size=3))
lives = st.lists(
    st.tuples(st.just("append"), st.lists(rows, min_size=1, max_size=3) | st.lists(rows, min_size=5, max_size=30))
    | st.tuples(st.just("step"), st.integers(1, 9))
    | st.tuples(st.just("find"), st.none())
    | st.tuples(st.just("merge"), st.none())
    | st.tuples(st.just("drop"), st.integers(1, 40)),
    max_size=60,
)


@settings(max_examples=examples(250), deadline=None)
@given(lives, st.sampled_from([key_hash, lambda key: len(key), lambda key: key_hash(key) % 11]), st.booleans())
def test_an_index_is_a_dict_through_merges_and_flushes(life, hash_of, compress):
    before, module.key_hash = module.key_hash, hash_of
    try:
        with small_bounds():
            live(life, hash_of, compress)
    finally:
        module.key_hash = before


def block_after(tree, batch, hash_of, compress):
    """A block of ``batch``, with gaps between its seqs where its first value is a long one; and its newest rows."""
    step = 2 if len(batch[0][1] or b"") == 3 else 1
    keys, values = zip(*batch, strict=True)
    seqs = range(tree.last_seq + 1, tree.last_seq + 1 + step * len(batch), step)
    stamps = Stamps(seqs, [1000 + seq // 4 for seq in seqs])
    hashes = [hash_of(key) for key in keys]
    block = encode_block(keys, values, partition=0, hashes=hashes, compress=compress, stamps=stamps)
    return block, dict(zip(keys, zip(*stamps, values, strict=True), strict=True))


def check_newest_seqs(tree, index, model, flushed_seq, hash_of):
    newest = {}
    for key, (seq, *_) in model.items():
        newest[hash_of(key)] = max(newest.get(hash_of(key), 0), seq)
    hashes = np.array([*newest, 2**63 + 1], "<u8")
    expected = [seq if seq > flushed_seq else 0 for seq in (*newest.values(), 0)]
    assert index.newest_seqs(tree, hashes).tolist() == expected
    indices, seqs = index.rows_of(tree, hashes)
    assert seqs.tolist() == sorted(seq for seq in expected if seq)
    assert [expected[index] for index in indices.tolist()] == seqs.tolist()


def live(life, hash_of, compress):
    tree, index, model, flushed_seq = Tree(), KeyIndex(), {}, 0
    for kind, what in [*life, ("find", None)]:
        match kind:
            case "append":
                block, newest = block_after(tree, what, hash_of, compress)
                model |= newest
                tree = tree.append(block)
            case "step":
                left = iter(range(what))
                index.catch_up(tree, lambda left=left: next(left, None) is None)
            case "merge":
                tree = tree.merge_aged(tree.last_seq)
            case "drop":
                flushed_seq = min(flushed_seq + what, tree.last_seq)
                tree = tree.drop_through(flushed_seq)
                index.drop_through(flushed_seq)
            case "find":
                level_with(tree, index)
                for key in MANY_KEYS:
                    known = model.get(key)
                    expected = known if known is not None and known[0] > flushed_seq else None
                    assert index.find(tree, key) == expected, key
                check_newest_seqs(tree, index, model, flushed_seq, hash_of)
        index.check()


def test_a_tree_that_begins_above_0_is_caught_up_with():
    tree = Tree(base_seq=100)
    index = level_with(tree)
    assert index.find(tree, b"a") is None
    tree = tree.append(encode_block([b"a"], [b"1"], partition=0).stamped(101, 7))
    assert level_with(tree, index).find(tree, b"a") == (101, 7, b"1")


def test_a_merged_block_that_reaches_below_the_flush_gives_only_what_is_above():
    tree = tree_of([[(b"%d" % number, b"v")] for number in range(64)]).merge_aged(64)
    index = level_with(tree)
    flushed = tree.drop_through(10)
    assert flushed.first_seq == 1
    index.drop_through(10)
    for again in (index, level_with(flushed, fresh_above(10))):
        assert again.find(flushed, b"9") is None
        assert again.find(flushed, b"10") == (11, 1110, b"v")


def test_rows_that_were_flushed_are_none_of_the_newest():
    tree = tree_of([[(b"a", b"1")], [(b"b", b"2")]])
    index = level_with(tree)
    hashes = np.array([key_hash(b"a"), key_hash(b"b")], "<u8")
    assert index.newest_seqs(tree, hashes).tolist() == [1, 2]
    index.drop_through(1)
    assert index.newest_seqs(tree.drop_through(1), hashes).tolist() == [0, 2]


def fresh_above(seq):
    index = KeyIndex()
    index.drop_through(seq)
    return index


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
    index, seen = KeyIndex(), [0]
    while not index.catch_up(tree, lambda: True):
        index.check()
        assert index.indexed_seq < tree.last_seq
        assert index.indexed_seq - seen[-1] <= SLICE_ROWS
        seen.append(index.indexed_seq)
    assert sorted(set(seen)) == [0, SLICE_ROWS, 2 * SLICE_ROWS, 3 * SLICE_ROWS, rows]
    newest = {key: seq for seq, key in enumerate(keys, 1)} | {b"7": rows + 1}
    for key, seq in newest.items():
        assert index.find(tree, key).seq == seq
    assert index.find(tree, b"7").value is None


def test_single_rows_are_sealed_before_the_dict_is_too_large(monkeypatch):
    monkeypatch.setattr(module, "SLICE_ROWS", 10)
    tree = tree_of([[(b"%d" % number, b"v")] for number in range(75)])
    index = KeyIndex()
    while not index.catch_up(tree, lambda: True):
        index.check()
    index.check()
    assert len(index._fresh) == 5
    for number in range(75):
        assert index.find(tree, b"%d" % number).seq == number + 1


def test_memory_is_16_bytes_a_row():
    rows = 20 * SLICE_ROWS
    tree = tree_of([[(b"%d" % number, b"") for number in range(rows)[at : at + 50_000]] for at in (0, 50_000)])
    index = level_with(tree)
    assert index.memory_bytes < 16.5 * rows


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
    real = module.Block.open_raw
    monkeypatch.setattr(module.Block, "open_raw", lambda block: opens.append(block) or real(block))
    for number, (key, value) in enumerate(rows):
        found = index.find(tree, key, opened)
        assert (found.seq, found.value) == (101 + number if number < 50 else 1 + number, value)
    assert len(opens) == 2


def test_what_is_kept_open_is_bounded(monkeypatch):
    monkeypatch.setattr(open_blocks, "OPEN_BYTES_MAX", 10_000)
    rows = [(b"key %d" % number, b"v" * 50) for number in range(100)]
    tree = tree_of([rows] * 5)
    opened = OpenBlocks()
    for block in tree.blocks_after(0):
        assert block.header.raw_bytes < 10_000 < 2 * block.header.raw_bytes
        opened.raw(block, block.header)
        assert len(opened._raw) == 1


def test_compressed_blocks_are_kept_from_one_look_up_to_the_next(monkeypatch):
    rows = [(b"key %d" % number, b"v" * 50) for number in range(100)]
    tree = tree_of([rows, rows[:50]])
    index, kept, opens = level_with(tree), ReadCache(1 << 20), []
    real = module.Block.open_raw
    monkeypatch.setattr(module.Block, "open_raw", lambda block: opens.append(block) or real(block))
    for _ in range(3):
        assert index.find(tree, b"key 7", OpenBlocks(kept)).seq == 108
        assert index.find(tree, b"key 70", OpenBlocks(kept)).seq == 71
    assert len(opens) == 2
    assert kept.nbytes == sum(block.nbytes + block.header.raw_bytes for block in tree.blocks_after(0))
