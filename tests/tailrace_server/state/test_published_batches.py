"""Runs of a write queue, against its blocks."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.state.published_batches import PublishedBatch, PublishedBatches

# Blocks of so many rows; each item is a run of several, or a block that is none.
QUEUES = st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 4), min_size=1, max_size=4)), max_size=8)


def made(queue):
    """PublishedBatches, and all blocks, of a queue."""
    runs, blocks, seq = PublishedBatches(), [], 0
    for is_run, sizes in queue:
        after_seq = seq
        for rows in sizes if is_run else sizes[:1]:
            blocks.append(SimpleNamespace(seqs=(seq + 1, seq + rows)))
            seq += rows
        if is_run:
            runs.add(PublishedBatch(after_seq, seq, len(sizes)))
    return runs, blocks, seq


def find_in(blocks):
    return lambda seq: next((block for block in blocks if block.seqs[0] <= seq <= block.seqs[1]), None)


@given(QUEUES)
def test_nobody_stands_inside(queue):
    runs, blocks, last_seq = made(queue)
    runs.check(0, last_seq, find_in(blocks))
    for seq in range(last_seq + 1):
        [inside] = [run for run in runs if run.after_seq < seq < run.last_seq] or [None]
        assert runs.around(seq) == inside
    for block in blocks:
        overlaps = any(run.after_seq < block.seqs[1] and run.last_seq >= block.seqs[0] for run in runs)
        assert runs.has_any_of(block) == overlaps


@given(QUEUES)
def test_cuts_are_the_ends_of_what_is_in_pieces(queue):
    runs, blocks, _ = made(queue)
    wanted = [seq for run in runs if run.blocks > 1 for seq in (run.after_seq, run.last_seq)]
    assert runs.cuts(find_in(blocks)) == wanted


@given(QUEUES, st.integers(0, 100))
def test_what_was_flushed_or_rolled_back_is_forgotten(queue, number):
    runs, _, last_seq = made(queue)
    ends = [0, *(run.last_seq for run in runs), last_seq]
    at = ends[number % len(ends)]
    wanted = list(runs)
    runs.drop_through(at)
    assert list(runs) == [run for run in wanted if run.last_seq > at]
    runs, _, _ = made(queue)
    runs.drop_above(at)
    assert list(runs) == [run for run in wanted if run.last_seq <= at]
