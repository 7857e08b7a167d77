"""What a task keeps of its blocks: all of them up to the bound, or none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.blocks_of_rows import block_of

from pyspark_tailrace.restaging import Keeper
from tailrace.block import Block

BLOCKS = [block_of([(b"k", b"v" * size, 1, 1)], compress=False) for size in (1, 50, 400)]


@given(st.lists(st.lists(st.sampled_from(BLOCKS), max_size=4), max_size=4), st.integers(0, 4_000))
def test_a_task_keeps_all_of_its_blocks_or_none(stages, bytes_max):
    keeper, taken = Keeper(bytes_max), 0
    for blocks in stages:
        keeper.next_stage()
        for digest, block in enumerate(blocks):
            keeper.add(block, digest)
            taken += block.nbytes
        assert keeper.is_full == (taken > bytes_max)
        kept = keeper.blocks()
        if keeper.is_full:
            assert kept is None
        else:
            assert [(Block.parse(one.data).head, one.digest) for one in kept] == [
                (block.head, digest) for digest, block in enumerate(blocks)
            ]
