"""The identity of a compaction's result, and the tombstones that it may drop."""

import pytest
from tests.tailrace_server.chain.made import id_of, made_chain, made_link, names

from tailrace_server.chain import compacted_link, tombstones_bound
from tailrace_server.chain.compaction_rules import compactable

A, B, C, D = made_chain(10, 20, 30, 40).links


def test_a_major_result():
    assert compacted_link(id_of("m"), (A, B)) == made_link("m", 0, 20, included="ba")


def test_a_minor_result_has_the_base_of_its_oldest_input():
    assert compacted_link(id_of("m"), (B, C)) == made_link("m", 10, 30, "a", included="cb")


def test_the_base_of_the_link_behind_comes_first():
    c = made_link("n", 10, 30, "a", included="cb")
    assert compacted_link(id_of("m"), (A, c), D) == made_link("m", 0, 30, included="cnab")


def test_the_purge_seq_never_falls():
    inputs = (A._replace(purge_seq=7), B)
    assert compacted_link(id_of("m"), inputs).purge_seq == 7
    assert compacted_link(id_of("m"), inputs, purged_seq=5).purge_seq == 7
    assert compacted_link(id_of("m"), inputs, purged_seq=15).purge_seq == 15


def test_no_placement_has_acknowledged_a_result():
    assert not compacted_link(id_of("m"), (A.with_placement(b"p"), B.with_placement(b"p"))).placements


@pytest.mark.parametrize(
    ("inputs", "stable_seq", "bound"),
    [
        ((A, B), 100, 20),
        ((A, B), 15, 15),
        ((A, B), 0, 0),
        ((A,), 100, 10),
        ((B, C), 100, 0),
    ],
    ids=["all are stable", "a rollback may reach into it", "nothing is stable", "the oldest alone", "not the oldest"],
)
def test_tombstones_go_only_with_the_oldest_segment_at_or_below_the_stable_seq(inputs, stable_seq, bound):
    assert tombstones_bound(inputs, stable_seq) == bound


@pytest.mark.parametrize(("stable_seq", "left"), [(0, ""), (9, ""), (10, "a"), (25, "ab"), (40, "abcd")])
def test_only_stable_segments_are_compacted(stable_seq, left):
    assert names(compactable((A, B, C, D), stable_seq)) == left


def test_segments_that_are_no_neighbours_are_not_compacted():
    with pytest.raises(AssertionError, match="only neighbours"):
        compacted_link(id_of("m"), (A, C))
    with pytest.raises(AssertionError, match="only a compaction of the oldest"):
        compacted_link(id_of("m"), (B, C), purged_seq=12)
    with pytest.raises(AssertionError, match="only neighbours of one chain"):
        made_chain(10, 20).compacted(made_link("m", 10, 15, "a"))
