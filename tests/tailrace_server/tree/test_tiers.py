import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.tree import tiers as module
from tailrace_server.tree.tiers import TIER_ENTRIES_MAX, Tier, Tiers

hash_lists = st.lists(st.integers(0, 20) | st.integers(0, 2**64 - 1), min_size=1, max_size=60)


def run_of(hashes, first_seq=1):
    seqs = np.arange(first_seq, first_seq + len(hashes), dtype="<u8")
    return Tier.of_columns(np.array(hashes, "<u8"), seqs)


def newest_of(hashes, first_seq=1):
    return {hash_: seq for seq, hash_ in enumerate(hashes, first_seq)}


def entries(tier):
    return dict(zip(tier.hashes.tolist(), tier.seqs.tolist(), strict=True))


@given(hash_lists)
def test_a_run_has_the_newest_seq_of_each_hash(hashes):
    tier = run_of(hashes)
    assert entries(tier) == newest_of(hashes)
    assert tier.hashes.tolist() == sorted(set(hashes))
    assert tier.last_seq == len(hashes)
    same = Tier.of_dict(newest_of(hashes))
    assert (entries(same), same.hashes.tolist(), same.last_seq) == (entries(tier), tier.hashes.tolist(), tier.last_seq)
    for hash_ in [*hashes, 21, 0, 2**64 - 1]:
        assert tier.find(np.uint64(hash_)) == newest_of(hashes).get(hash_)


@given(hash_lists, hash_lists, st.integers(0, 130))
def test_neighbours_are_merged_without_what_is_flushed(older, newer, above_seq):
    merged = run_of(older).merged(run_of(newer, len(older) + 1), above_seq)
    expected = newest_of(older) | newest_of(newer, len(older) + 1)
    assert entries(merged) == {hash_: seq for hash_, seq in expected.items() if seq > above_seq}
    assert merged.last_seq == len(older) + len(newer)


@given(st.lists(st.tuples(hash_lists, st.integers(0, 3), st.integers(0, 40)), max_size=12), st.integers(2, 200))
def test_runs_are_a_dict(steps, entries_max):
    before, module.TIER_ENTRIES_MAX = module.TIER_ENTRIES_MAX, entries_max
    try:
        check_against_a_dict(steps)
    finally:
        module.TIER_ENTRIES_MAX = before


def check_against_a_dict(steps):
    tiers, model, last_seq, flushed_seq = Tiers(), {}, 0, 0
    for hashes, merges, drop in steps:
        tiers.add(run_of(hashes, last_seq + 1))
        model |= newest_of(hashes, last_seq + 1)
        last_seq += len(hashes)
        for _ in range(merges):
            tiers.merge()
        flushed_seq = min(flushed_seq + drop, last_seq)
        tiers.drop_through(flushed_seq)
        tiers.check()
        for hash_, seq in [*model.items(), (2**40 + 1, None)]:
            assert tiers.find(hash_) == (seq if seq is not None and seq > flushed_seq else None)
    while tiers.merge():
        tiers.check()


def test_runs_are_merged_to_few():
    tiers, rnd = Tiers(), np.random.default_rng(1)
    for number in range(100):
        tiers.add(Tier.of_columns(rnd.integers(0, 2**64, 4096, "<u8"), np.arange(1, 4097, dtype="<u8") + 4096 * number))
        while tiers.merge():
            pass
    assert len(tiers) <= 2 * 100 * 4096 // TIER_ENTRIES_MAX + 4
    tiers.check()
    assert tiers.nbytes == 16 * 100 * 4096


def test_a_key_that_is_written_again_and_again_takes_one_entry():
    tiers = Tiers()
    for number in range(50):
        tiers.add(Tier.of_columns(np.zeros(100, "<u8"), np.arange(1, 101, dtype="<u8") + 100 * number))
        while tiers.merge():
            pass
    assert (len(tiers), tiers.nbytes) == (1, 16)
    assert tiers.find(0) == 5000


def test_whole_runs_are_dropped():
    tiers = Tiers()
    tiers.add(run_of(range(100)))
    tiers.add(run_of(range(10), 101))
    tiers.drop_through(99)
    assert len(tiers) == 2
    tiers.drop_through(100)
    assert len(tiers) == 1
    assert tiers.find(50) is None
    tiers.drop_through(50)
    assert tiers.flushed_seq == 100
    tiers.drop_through(110)
    assert (len(tiers), tiers.nbytes) == (0, 0)
    assert tiers.merge() is False


def test_what_is_flushed_leaves_when_runs_are_merged():
    tiers = Tiers()
    tiers.add(run_of(range(10)))
    tiers.add(run_of(range(10, 20), 11))
    tiers.drop_through(9)
    assert tiers.merge()
    assert tiers.nbytes == 16 * 11
    tiers.check()


def test_runs_come_in_order():
    tiers = Tiers()
    tiers.add(run_of([1, 2], 5))
    with pytest.raises(AssertionError, match="order of seqs"):
        tiers.add(run_of([3], 6))


def test_check_notices_what_does_not_hold():
    def runs_of(*made):
        tiers = Tiers()
        tiers._tiers = list(made)
        return tiers

    def arrays(*numbers):
        return np.array(numbers, "<u8")

    good = run_of([1, 2], 5)
    for tiers, problem in (
        (runs_of(Tier(arrays(), arrays(), 5)), "no entries"),
        (runs_of(Tier(arrays(1), arrays(1, 2), 5)), "different lengths"),
        (runs_of(Tier(arrays(2, 1), arrays(1, 2), 5)), "do not rise"),
        (runs_of(good, good), "begins before"),
        (runs_of(Tier(arrays(1, 2), arrays(1, 9), 5)), "above its last"),
    ):
        with pytest.raises(AssertionError, match=problem):
            tiers.check()
    flushed = runs_of(good)
    flushed.flushed_seq = 6
    with pytest.raises(AssertionError, match="is flushed"):
        flushed.check()
