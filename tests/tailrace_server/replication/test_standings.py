"""Whose history goes on: the highest standing, and this node's own where it is as high."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError
from tailrace_server.replication.standings import (
    PartitionId,
    Standing,
    choose,
    standings_from_json,
    standings_to_json,
)

A, B = bytes(16), bytes(15) + b"b"
PLACES = [PartitionId(A, 0), PartitionId(A, 1), PartitionId(B, 0)]
standing = st.builds(Standing, st.integers(0, 3), st.integers(0, 3))
standings = st.dictionaries(st.sampled_from(PLACES), standing)


@given(standings, st.dictionaries(st.sampled_from(["b:1", "c:1"]), standings))
def test_the_highest_standing_wins_and_this_node_wins_ties(own, others):
    chosen = choose(own, others, PLACES)
    assert chosen.keys() == set(PLACES)
    for place, best in chosen.items():
        mine = own.get(place, (0, 0))
        theirs = [told.get(place, (0, 0)) for told in others.values()]
        assert best.standing == max([mine, *theirs])
        if best.address:
            assert best.standing == others[best.address][place] > mine


def test_a_long_tail_of_an_older_term_loses():
    own = {PartitionId(A, 0): Standing(1, 100)}
    chosen = choose(own, {"b:1": {PartitionId(A, 0): Standing(2, 50)}}, [PartitionId(A, 0)])
    assert chosen[PartitionId(A, 0)].address == "b:1"


def test_standings_travel_as_json():
    told = {PartitionId(A, 0): Standing(1, 5), PartitionId(A, 1): Standing(0, 0), PartitionId(B, 0): Standing(3, 7)}
    assert standings_from_json(standings_to_json(told), "PROMISE") == told


def test_partitions_of_other_groups_travel_as_empty_ones():
    odd = {PartitionId(A, 1): Standing(1, 5), PartitionId(A, 3): Standing(2, 7)}
    told = standings_from_json(standings_to_json(odd), "PROMISE")
    assert told == odd | {PartitionId(A, number): Standing(0, 0) for number in (0, 2)}


@pytest.mark.parametrize(
    "value", [None, [], {"x": []}, {"00": []}, {A.hex(): [[1]]}, {A.hex(): [[1, -1]]}, {A.hex(): [[1, "2"]]}]
)
def test_what_is_no_standings_is_refused(value):
    with pytest.raises(ProtocolError):
        standings_from_json(value, "PROMISE")
