import itertools
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.block import FLAG_COMPRESSED, Block, encode_block
from tailrace.errors import BadBlock
from tailrace_server.tree import aging, tree
from tailrace_server.tree.tree import Tree

SMALL_BYTES_MAX = 300
MERGED_BYTES_MAX = 900
ROWS_MAX = 20


@contextmanager
def small_bounds():
    """Chunks of 3 blocks, 4 of which are merged again, so that a few blocks go all the way."""
    names = {
        (tree, "CHUNK_BLOCKS_MAX"): 3,
        (aging, "WAITING_CHUNKS_MAX"): 4,
        (tree, "CHUNKS_TOGETHER_MAX"): 1,
        (aging, "SMALL_BYTES_MAX"): SMALL_BYTES_MAX,
        (aging, "MERGED_BYTES_MAX"): MERGED_BYTES_MAX,
        (aging, "ROWS_MAX"): ROWS_MAX,
    }
    before = {key: getattr(*key) for key in names}
    for (module, name), value in names.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


def next_block(grown, rows=1, nbytes=10):
    keys = [b"%d" % (grown.last_seq + number) for number in range(rows)]
    block = encode_block(keys, [b"v" * nbytes] * rows, partition=0, producer_id=7)
    return block.stamped(grown.last_seq + 1, 1000 + grown.last_seq)


def grown_by(grown, count, **sizes):
    for _ in range(count):
        grown = grown.append(next_block(grown, **sizes))
    return grown


def held(some_tree):
    return list(some_tree.blocks_after(0))


def rows_of(blocks):
    rows = []
    for block in blocks:
        columns = block.open_columns()
        rows += zip(columns.seqs(), columns.timestamps(), columns.keys(), columns.values(), strict=True)
    return rows


def extents(blocks):
    return [(block.header.first_seq, block.header.last_seq) for block in blocks]


steps = st.lists(
    st.tuples(st.just("append"), st.integers(1, 6), st.sampled_from([0, 5, 60, 400]))
    | st.tuples(st.just("merge"), st.integers(0, 400), st.integers(1, 3))
    | st.tuples(st.just("drop"), st.integers(0, 200), st.none())
    | st.tuples(st.just("cut"), st.none(), st.none()),
    max_size=80,
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 7), st.sampled_from([0, 5, 60, 400])), min_size=1, max_size=9),
    st.lists(st.integers(0, 40), max_size=2),
)
def test_blocks_that_all_belong_together_are_the_group_that_one_by_one_makes(made, cuts):
    with small_bounds():
        grown = Tree()
        for rows, nbytes in made:
            grown = grown.append(next_block(grown, rows, nbytes))
        planned = aging.plan_merge([aging.chunk_of(held(grown))], cuts, settles=False)
        with patch.object(aging, "_is_one_group", lambda *_: False):
            assert aging.plan_merge([aging.chunk_of(held(grown))], cuts, settles=False) == planned


@settings(max_examples=examples(150), deadline=None)
@given(steps)
def test_merging_changes_no_row_and_no_older_root(taken):
    with small_bounds():
        now, rows, cuts, stable_seq, roots = Tree(), [], [], 0, []
        for kind, number, other in taken:
            match kind:
                case "append":
                    block = next_block(now, number, other)
                    now = now.append(block)
                    rows += rows_of([block])
                case "cut":
                    cuts.append(now.last_seq)
                case "drop":
                    rest = [block for block in held(now) if block.header.last_seq > number]
                    now = now.drop_through(number)
                    assert held(now) == rest
                    rows = [row for row in rows if row[0] > now.base_seq]
                case "merge":
                    stable_seq = min(max(stable_seq, number), now.last_seq)
                    for _ in range(other):
                        plan = now.merge_plan(stable_seq, cuts)
                        assert now.is_merge_due(stable_seq) == (plan is not None)
                        if plan is not None:
                            roots.append((now, held(now)))
                            now = now.replaced(plan, plan.merge(), cuts)
                            assert now is not roots[-1][0]
            now.check()
            assert rows_of(held(now)) == rows
            check_bounds(now, cuts, stable_seq)
        for root, blocks in roots:
            root.check()
            assert all(a is b for a, b in zip(held(root), blocks, strict=True))


def check_bounds(now, cuts, stable_seq):
    for block in held(now):
        header = block.header
        if header.producer_id == 0:
            assert header.last_seq <= stable_seq, "what is not stable was merged"
            assert not any(header.first_seq <= cut < header.last_seq for cut in cuts), "a block crosses a border"
            assert header.rows <= ROWS_MAX
            assert header.raw_bytes <= MERGED_BYTES_MAX + 8 * header.rows, "no more than a column of timestamps above"


def test_single_puts_end_as_few_blocks():
    with small_bounds():
        now = grown_by(Tree(), 3 * 4 * 10 + 2)
        merged = now.merge_aged(now.last_seq)
        merged.check()
        assert merged.unmerged_blocks == 2
        assert extents(held(merged)[:4]) == [(1, 12), (13, 24), (25, 36), (37, 48)]
        assert merged.block_count == 10 + 2
        assert rows_of(held(merged)) == rows_of(held(now))
        assert (merged.last_seq, merged.first_seq) == (now.last_seq, now.first_seq)
        assert merged.memory_bytes < now.memory_bytes / 4


def test_ten_thousand_puts_with_the_real_bounds():
    now = Tree()
    for _ in range(10_000):
        now = now.append(next_block(now))
        if now.merge_plan(now.last_seq) is not None:
            now = now.merge_aged(now.last_seq)
        assert now.unmerged_blocks <= 64
    now.check()
    assert now.block_count == 2 + 28 + 16  # 2 times 4,096 rows, 28 times 64, and the tail
    merged_bytes = sum(block.nbytes for block in held(now)[:30])
    tail = sum(block.nbytes for block in held(now)[30:])
    assert now.nbytes == merged_bytes + tail


def test_chunks_that_are_due_together_are_merged_together():
    with small_bounds(), patch.object(tree, "CHUNKS_TOGETHER_MAX", 2):
        now = grown_by(Tree(), 3 * 3)
        assert [len(group.blocks) for group in now.merge_plan(9).groups] == [6]
        assert [len(group.blocks) for group in now.merge_plan(5).groups] == [3]
        merged = now.merge_aged(9)
        merged.check()
        assert extents(held(merged)) == [(1, 6), (7, 9)]
        assert rows_of(held(merged)) == rows_of(held(now))


def test_nothing_above_the_stable_seq_is_merged():
    with small_bounds():
        now = grown_by(Tree(), 9)
        assert now.merge_plan(2) is None
        assert now.merge_plan(0) is None
        once = now.merge_aged(5)
        assert extents(held(once)) == [(1, 3), *((seq, seq) for seq in range(4, 10))]
        assert once.merge_plan(5) is None
        assert once.merge_plan(6) is not None
        assert once.unmerged_blocks == 6


def test_the_tail_is_not_merged():
    with small_bounds():
        assert grown_by(Tree(), 2).merge_plan(2) is None
        assert grown_by(Tree(), 3).merge_plan(3) is not None


def test_merging_is_cut_at_branches():
    with small_bounds():
        now = grown_by(Tree(), 6)
        assert extents(held(now.merge_aged(6, [4]))) == [(1, 3), (4, 4), (5, 6)]
        assert extents(held(now.merge_aged(6, [5, 1]))) == [(1, 1), (2, 3), (4, 5), (6, 6)]
        assert extents(held(now.merge_aged(6, [0, 3, 6]))) == [(1, 3), (4, 6)]
        again = grown_by(Tree(), 12)
        assert extents(held(again.merge_aged(12, [6]))) == [(1, 6), (7, 12)]


def test_a_border_inside_of_a_block_came_too_late():
    with small_bounds():
        now = grown_by(Tree(), 9).merge_aged(3)
        assert extents(held(now))[0] == (1, 3)
        for cuts in itertools.combinations(range(10), 2):
            merged = grown_by(now, 6).merge_aged(15, cuts)
            merged.check()
            assert merged.merge_plan(15, cuts) is None
            assert merged.unmerged_blocks == 0


def test_large_blocks_stay_as_they_are():
    with small_bounds():
        now = grown_by(grown_by(grown_by(Tree(), 2), 1, nbytes=400), 3)
        merged = now.merge_aged(6)
        assert extents(held(merged)) == [(1, 2), (3, 3), (4, 6)]
        assert held(merged)[1] is held(now)[2]
        large = grown_by(Tree(), 9, nbytes=400)
        plan = large.merge_plan(9)
        assert plan.raw_bytes == 0
        passed = large.merge_aged(9)
        assert [id(block) for block in held(passed)] == [id(block) for block in held(large)]
        assert passed.merge_plan(9) is None
        assert passed.unmerged_blocks == 0


def test_merged_blocks_do_not_grow_above_the_bounds():
    with small_bounds():
        rows = grown_by(Tree(), 12, rows=7, nbytes=0)
        assert {block.rows for block in held(rows.merge_aged(rows.last_seq))} == {7, 14}
        wide = grown_by(Tree(), 12, nbytes=200)
        merged = held(wide.merge_aged(12))
        assert all(block.header.raw_bytes <= MERGED_BYTES_MAX + 8 * block.rows for block in merged)


def test_what_was_merged_in_a_thread_comes_in_while_the_tree_goes_on():
    with small_bounds():
        now = grown_by(Tree(), 9)
        plan = now.merge_plan(9)
        merged = plan.merge()
        later = grown_by(now, 5)
        swapped = later.replaced(plan, merged)
        swapped.check()
        assert extents(held(swapped))[:2] == [(1, 3), (4, 4)]
        assert swapped.last_seq == 14
        assert swapped.replaced(plan, merged) is swapped, "they are there already"


def test_what_was_merged_too_late_does_not_come_in():
    with small_bounds():
        now = grown_by(Tree(), 9)
        plan = now.merge_plan(9)
        merged = plan.merge()
        for seq in (1, 2, 3, 7, 9):
            dropped = now.drop_through(seq)
            assert dropped.replaced(plan, merged) is dropped
        assert now.replaced(plan, merged, [2]) is now, "a border that has come meanwhile"
        assert now.replaced(plan, merged, [1]) is now
        assert now.replaced(plan, merged, [0, 3]) is not now
        second = now.replaced(plan, merged).merge_plan(9)
        made = second.merge()
        behind = now.replaced(plan, merged).drop_through(3)
        swapped = behind.replaced(second, made)
        swapped.check()
        assert extents(held(swapped))[0] == (4, 6)


def test_a_run_that_waits_is_planned_anew_after_a_drop():
    with small_bounds():
        now = grown_by(Tree(), 12)
        for _ in range(4):
            plan = now.merge_plan(12)
            assert not plan.settles
            now = now.replaced(plan, plan.merge())
        plan = now.merge_plan(0)
        assert plan.settles
        assert len(plan.chunks) == 4
        merged = plan.merge()
        dropped = now.drop_through(3)
        dropped.check()
        assert dropped.replaced(plan, merged) is dropped
        assert dropped.merge_plan(12) is None, "fewer wait now"
        whole = now.drop_through(2).replaced(plan, merged)
        assert extents(held(whole)) == [(1, 12)]


def test_blocks_of_another_plan_are_refused():
    with small_bounds():
        now = grown_by(Tree(), 6)
        with pytest.raises(AssertionError, match="another plan's"):
            now.replaced(now.merge_plan(6), held(now)[:3])


def test_compressed_blocks_are_merged_compressed():
    with small_bounds():
        plain = grown_by(Tree(), 3)
        assert not plain.merge_plan(3).is_compressed
    wide = grown_by(Tree(), 64, nbytes=500)
    plan = wide.merge_plan(64)
    assert plan.is_compressed
    assert plan.raw_bytes == sum(block.header.raw_bytes for block in held(wide))
    (block,) = plan.merge()
    assert block.header.flags & FLAG_COMPRESSED


def test_a_block_that_was_damaged_in_memory_is_told():
    with small_bounds():
        now = grown_by(Tree(), 2)
        good = next_block(now)
        body = bytearray(good.body)
        body[-1] ^= 1
        now = now.append(Block(good.header, good.head, bytes(body)))
        with pytest.raises(BadBlock, match="damaged"):
            now.merge_aged(3)


def test_it_is_cheap_to_ask_when_nothing_is_to_be_done(monkeypatch):
    now = grown_by(Tree(), 1000).merge_aged(1000)
    monkeypatch.setattr(tree, "plan_merge", None)
    assert all(now.merge_plan(stable_seq) is None for stable_seq in (0, 500, 1000))
