import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.tree import runs as module
from tailrace_server.tree.runs import RUN_ENTRIES_MAX, Run, Runs

hash_lists = st.lists(st.integers(0, 20) | st.integers(0, 2**64 - 1), min_size=1, max_size=60)


def run_of(hashes, first_seq=1):
    seqs = np.arange(first_seq, first_seq + len(hashes), dtype="<u8")
    return Run.of_columns(np.array(hashes, "<u8"), seqs)


def newest_of(hashes, first_seq=1):
    return {hash_: seq for seq, hash_ in enumerate(hashes, first_seq)}


def entries(run):
    return dict(zip(run.hashes.tolist(), run.seqs.tolist(), strict=True))


@given(hash_lists)
def test_a_run_has_the_newest_seq_of_each_hash(hashes):
    run = run_of(hashes)
    assert entries(run) == newest_of(hashes)
    assert run.hashes.tolist() == sorted(set(hashes))
    assert run.last_seq == len(hashes)
    same = Run.of_dict(newest_of(hashes))
    assert (entries(same), same.hashes.tolist(), same.last_seq) == (entries(run), run.hashes.tolist(), run.last_seq)
    for hash_ in [*hashes, 21, 0, 2**64 - 1]:
        assert run.find(np.uint64(hash_)) == newest_of(hashes).get(hash_)


@given(hash_lists, hash_lists, st.integers(0, 130))
def test_neighbours_are_merged_without_what_is_flushed(older, newer, above_seq):
    merged = run_of(older).merged(run_of(newer, len(older) + 1), above_seq)
    expected = newest_of(older) | newest_of(newer, len(older) + 1)
    assert entries(merged) == {hash_: seq for hash_, seq in expected.items() if seq > above_seq}
    assert merged.last_seq == len(older) + len(newer)


@given(st.lists(st.tuples(hash_lists, st.integers(0, 3), st.integers(0, 40)), max_size=12), st.integers(2, 200))
def test_runs_are_a_dict(steps, entries_max):
    before, module.RUN_ENTRIES_MAX = module.RUN_ENTRIES_MAX, entries_max
    try:
        check_against_a_dict(steps)
    finally:
        module.RUN_ENTRIES_MAX = before


def check_against_a_dict(steps):
    runs, model, last_seq, flushed_seq = Runs(), {}, 0, 0
    for hashes, merges, drop in steps:
        runs.add(run_of(hashes, last_seq + 1))
        model |= newest_of(hashes, last_seq + 1)
        last_seq += len(hashes)
        for _ in range(merges):
            runs.merge()
        flushed_seq = min(flushed_seq + drop, last_seq)
        runs.drop_through(flushed_seq)
        runs.check()
        for hash_, seq in [*model.items(), (2**40 + 1, None)]:
            assert runs.find(hash_) == (seq if seq is not None and seq > flushed_seq else None)
    while runs.merge():
        runs.check()


def test_runs_are_merged_to_few():
    runs, rnd = Runs(), np.random.default_rng(1)
    for number in range(100):
        runs.add(Run.of_columns(rnd.integers(0, 2**64, 4096, "<u8"), np.arange(1, 4097, dtype="<u8") + 4096 * number))
        while runs.merge():
            pass
    assert len(runs) <= 2 * 100 * 4096 // RUN_ENTRIES_MAX + 4
    runs.check()
    assert runs.nbytes == 16 * 100 * 4096


def test_a_key_that_is_written_again_and_again_takes_one_entry():
    runs = Runs()
    for number in range(50):
        runs.add(Run.of_columns(np.zeros(100, "<u8"), np.arange(1, 101, dtype="<u8") + 100 * number))
        while runs.merge():
            pass
    assert (len(runs), runs.nbytes) == (1, 16)
    assert runs.find(0) == 5000


def test_whole_runs_are_dropped():
    runs = Runs()
    runs.add(run_of(range(100)))
    runs.add(run_of(range(10), 101))
    runs.drop_through(99)
    assert len(runs) == 2
    runs.drop_through(100)
    assert len(runs) == 1
    assert runs.find(50) is None
    runs.drop_through(50)
    assert runs.flushed_seq == 100
    runs.drop_through(110)
    assert (len(runs), runs.nbytes) == (0, 0)
    assert runs.merge() is False


def test_what_is_flushed_leaves_when_runs_are_merged():
    runs = Runs()
    runs.add(run_of(range(10)))
    runs.add(run_of(range(10, 20), 11))
    runs.drop_through(9)
    assert runs.merge()
    assert runs.nbytes == 16 * 11
    runs.check()


def test_runs_come_in_order():
    runs = Runs()
    runs.add(run_of([1, 2], 5))
    with pytest.raises(AssertionError, match="order of seqs"):
        runs.add(run_of([3], 6))


def test_check_notices_what_does_not_hold():
    def runs_of(*made):
        runs = Runs()
        runs._runs = list(made)
        return runs

    def arrays(*numbers):
        return np.array(numbers, "<u8")

    good = run_of([1, 2], 5)
    for runs, problem in (
        (runs_of(Run(arrays(), arrays(), 5)), "no entries"),
        (runs_of(Run(arrays(1), arrays(1, 2), 5)), "different lengths"),
        (runs_of(Run(arrays(2, 1), arrays(1, 2), 5)), "do not rise"),
        (runs_of(good, good), "begins before"),
        (runs_of(Run(arrays(1, 2), arrays(1, 9), 5)), "above its last"),
    ):
        with pytest.raises(AssertionError, match=problem):
            runs.check()
    flushed = runs_of(good)
    flushed.flushed_seq = 6
    with pytest.raises(AssertionError, match="is flushed"):
        flushed.check()
