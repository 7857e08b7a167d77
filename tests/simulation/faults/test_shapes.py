"""Each shape cuts the ways that its name tells, and no more."""

import random

import pytest

from . import shapes

NODES = ["a", "b", "c"]


def test_an_isolated_node_neither_hears_nor_is_heard():
    assert set(shapes.isolated("a", NODES)) == {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}


def test_a_split_has_two_sides_within_which_all_hear_each_other():
    for seed in range(20):
        cut = shapes.split(random.Random(seed), NODES)
        assert len(cut) == 4
        [whole] = {frozenset(way) for way in shapes.both("a", "b") + shapes.both("b", "c") + shapes.both("a", "c")} - {
            frozenset(way) for way in cut
        }
        assert len(whole) == 2


def test_who_is_deaf_is_heard_and_who_is_mute_hears():
    assert set(shapes.deaf("a", NODES)) == {("b", "a"), ("c", "a")}
    assert set(shapes.mute("a", NODES)) == {("a", "b"), ("a", "c")}


def test_in_a_ring_each_is_heard_by_one():
    assert set(shapes.ring(NODES)) == {("a", "c"), ("b", "a"), ("c", "b")}
    assert shapes.ring(["a", "b"]) == [("a", "b")]


def test_across_a_bridge_the_others_do_not_hear_each_other():
    assert set(shapes.bridge("b", NODES)) == {("a", "c"), ("c", "a")}


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_chosen_cuts_something_between_machines_that_there_are(seed):
    name, ways = shapes.chosen(random.Random(seed), NODES, ["client"])
    assert ways
    assert all(one != other and {one, other} <= {*NODES, "client"} for one, other in ways), name
