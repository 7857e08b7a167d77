"""Voters by epoch: the decisions alone, and in a model of a set whose disks are replaced and come back."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace_server.replication.voters_model import ALL_RULES, BUGS, BUGS_OF_MEMBERS, Lost, Model, walk

from tailrace.errors import NotLeader, ProtocolError
from tailrace_server.replication.gathered_promises import GatheredPromises
from tailrace_server.replication.voters import (
    VACANT,
    Claim,
    Stored,
    Voters,
    Waiting,
    counts,
    first_record,
    next_departure,
    next_step,
    voters_field,
    voters_from_json,
    voters_to_json,
    why_no_step,
    why_not_yet,
)

A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))
RECORD = Voters(3, 4, (A, B, C))
# Seeds of walks that find each planted bug, with the number of seats; chosen of 1,500.
SEEDS = {
    "a candidate with an earlier record gets promises": (3, 21),
    "a disk is exchanged in one step": (3, 2),
    "the next step does not wait until a majority has stored the last": (5, 33),
    "every directory counts": (3, 7),
}
# Of walks in which members are added and removed; chosen of 500.
SEEDS_OF_MEMBERS = {
    "two seats are dropped in one step": (3, 40),
    "a member that is to join counts as if it had a seat": (3, 50),
}
SIZES = {3: (4, 5, 3, 4, 3, 5), 5: (4, 3, 4, 5)}
NAMED = RECORD.naming(("a:1", "b:2", "c:3"))


@st.composite
def records(draw):
    ids = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5, unique=True))
    vacant = draw(st.sets(st.sampled_from(range(len(ids)))))
    seats = tuple(VACANT if seat in vacant else bytes([id]) * 16 for seat, id in enumerate(ids))
    return Voters(draw(st.integers(0, 9)), draw(st.integers(0, 9)), seats)


def majorities(voters):
    return [set(chosen) for chosen in itertools.combinations(sorted(voters.ids), voters.majority)]


@given(records(), records())
def test_majorities_of_records_that_follow_each_other_have_a_common_voter(before, other):
    after = before._replace(epoch=before.epoch + 1, seats=other.seats)
    if not why_no_step(before, after):
        assert all(one & two for one in majorities(before) for two in majorities(after))


@given(records(), st.dictionaries(st.integers(0, 1), st.sampled_from([bytes([id]) * 16 for id in range(9)])))
def test_each_step_may_follow_and_ends_with_those_that_waited(voters, waiting):
    steps = 0

    def ready():
        return {seat: Waiting(id, voters.term, voters.epoch) for seat, id in waiting.items() if id != VACANT}

    while (after := next_step(voters, ready())) is not None:
        assert not why_no_step(voters, after)
        voters, steps = after, steps + 1
        assert steps <= 4
    assert all(id == VACANT or voters.has(id) for id in waiting.values())


def test_a_seat_becomes_vacant_first_and_is_given_to_a_directory_that_is_ready_as_of_then():
    vacated = next_step(RECORD, {1: Waiting(D, 3, 2)})
    assert vacated == RECORD.with_seat(1, VACANT)
    assert next_step(RECORD, {1: Waiting(D, 2, 4)}) is None
    assert next_step(vacated, {1: Waiting(D, 3, 4)}) is None
    assert next_step(vacated, {1: Waiting(D, 3, 5)}) == vacated.with_seat(1, D)
    assert next_step(vacated, {0: Waiting(B, 3, 4), 1: Waiting(D, 3, 5)}) == vacated.with_seat(1, D)


def test_a_member_joins_without_a_seat_and_gets_one_of_its_own_as_it_catches_up():
    joining = NAMED.with_joining("d:4")
    assert joining.members == ("a:1", "b:2", "c:3", "d:4")
    assert (joining.epoch, joining.seats, joining.majority) == (5, NAMED.seats, 2)
    assert next_step(joining, {3: Waiting(D, 3, 4)}) is None
    seated = next_step(joining, {3: Waiting(D, 3, 5)})
    assert seated == Voters(3, 6, (A, B, C, D), joining.members)
    assert not why_no_step(NAMED, joining) + why_no_step(joining, seated)
    assert joining.with_leaving("d:4") == NAMED._replace(epoch=6)


def test_a_member_leaves_if_those_that_are_left_are_a_majority_and_hold_the_rows():
    leaving = NAMED.with_leaving("b:2")
    assert (leaving.members, leaving.leaving) == (NAMED.members, ("b:2",))
    gone = Voters(3, 6, (A, C), ("a:1", "c:3"))
    assert not why_no_step(leaving, gone)
    assert next_departure(leaving, A, {A, B, C}, is_held=True) == gone
    assert next_departure(leaving, A, {A, B, C}, is_held=False) is None
    assert next_departure(leaving, A, {A, B}, is_held=True) is None
    assert next_departure(leaving, B, {A, B, C}, is_held=True) is None
    assert next_departure(leaving.with_seat(1, VACANT), A, {A, C}, is_held=True) == gone._replace(epoch=7)
    assert next_step(leaving, {1: Waiting(D, 3, 5)}) is None


def test_two_disks_at_once_are_no_step():
    assert "one voter at a time" in why_no_step(RECORD, RECORD._replace(epoch=5, seats=(A, B, D)))
    assert "two seats" in why_no_step(RECORD, RECORD._replace(epoch=5, seats=(A, B, B)))
    assert "does not follow" in why_no_step(RECORD, RECORD._replace(epoch=6))


@given(records(), st.booleans())
def test_a_record_survives_files_and_messages(voters, is_named):
    if is_named:
        names = tuple(f"n{number}:1" for number in range(len(voters.seats)))
        voters = voters.naming(names).with_joining("new:1").with_leaving(names[0])
    assert voters_from_json(voters_to_json(voters)) == voters
    assert voters_field({"voters": voters_to_json(voters)}, "X") == voters


@pytest.mark.parametrize(
    "value",
    [
        [],
        "voters",
        {"term": 1, "epoch": 1},
        {"term": -1, "epoch": 1, "seats": []},
        {"term": 1, "epoch": True, "seats": []},
        {"term": 1, "epoch": 1, "seats": ["ab"]},
        {"term": 1, "epoch": 1, "seats": [A.hex(), A.hex()]},
        {"term": 1, "epoch": 1, "seats": [1]},
        {"term": 1, "epoch": 1, "seats": [""] * 102},
        {"term": 1, "epoch": 1, "seats": [A.hex()], "names": "a:1"},
        {"term": 1, "epoch": 1, "seats": [A.hex()], "names": ["a:1", "b:2"]},
        {"term": 1, "epoch": 1, "seats": [A.hex()], "names": ["a:x"]},
        {"term": 1, "epoch": 1, "seats": [A.hex()], "joining": ["b:2"]},
        {"term": 1, "epoch": 1, "seats": [A.hex()], "names": ["a:1"], "joining": ["a:1"]},
        {"term": 1, "epoch": 1, "seats": [A.hex()], "names": ["a:1"], "leaving": ["b:2"]},
        {"term": 1, "epoch": 1, "seats": [A.hex()], "names": ["a:1"], "leaving": ["a:1", "a:1"]},
        {"term": 1, "epoch": 1, "seats": [A.hex()], "names": ["a:1"], "joining": [f"b:{n}" for n in range(1, 102)]},
    ],
)
def test_other_values_are_refused(value):
    with pytest.raises(ProtocolError, match="X: "):
        voters_field({"voters": value}, "X")


def test_an_earlier_version_tells_no_voters():
    assert voters_field({}, "X") is None


def test_a_directory_counts_by_its_seat_and_in_epoch_0_by_its_word():
    assert counts(RECORD, A, says_so=False)
    assert not counts(RECORD, D, says_so=True)
    assert not counts(RECORD.with_seat(0, VACANT), VACANT, says_so=True)
    unrecorded = Voters(0, 0, (A,))
    assert counts(unrecorded, A, says_so=False)
    assert counts(unrecorded, D, says_so=True)
    assert not counts(unrecorded, D, says_so=False)


def test_the_later_record_is_of_the_higher_term_then_of_the_higher_epoch():
    assert RECORD.led_in(5).is_later(RECORD.with_seat(0, D))
    assert RECORD.with_seat(0, D).is_later(RECORD)
    assert not RECORD.is_later(RECORD)
    assert Voters(0, 0, (A,)).led_in(5) == Voters(0, 0, (A,))


def test_a_step_waits_until_a_majority_has_stored_the_record_in_this_term():
    own, other = Stored(3, RECORD), Stored(3, RECORD)

    def why(others, own=own, term=3, **changed):
        return why_not_yet(A, term, own, others, **{"is_forced": False, **changed})

    assert "1 of 2" in why({})
    assert "1 of 2" in why({D: other})
    assert "1 of 2" in why({B: other._replace(term=4)})
    assert "1 of 2" in why({B: other._replace(voters=RECORD.with_seat(2, VACANT))})
    assert not why({B: other})
    assert not why({}, is_forced=True)
    assert "leads in term 4" in why({B: other}, term=4)
    assert "leads in term 3" in why({B: other}, own=Stored(4, RECORD))


def test_a_set_of_an_earlier_version_records_those_that_vote_and_answer():
    members = [Claim(A, True), Claim(B, False), None]
    assert first_record(7, (), members) is None
    assert first_record(7, (B,), members) == Voters(7, 1, (A, B, VACANT))


@pytest.mark.parametrize("seats", [3, 4, 5])
def test_no_walk_loses_an_acknowledged_row(seats):
    done = [walk(seats, seed) for seed in range(60)]
    assert sum(model.changes for model in done) > 20
    assert sum(len(model.acknowledged) for model in done) > 100


@pytest.mark.parametrize("bug", SEEDS)
def test_each_planted_bug_loses_one(bug):
    seats, seed = SEEDS[bug]
    walk(seats, seed)
    with pytest.raises(Lost):
        walk(seats, seed, BUGS[bug])


def seated_too_soon(rules):
    """A row is at quorum on a disk that leaves. The new disk had caught up before that row."""
    model = Model(3, 0, rules)
    leader, second, third = model.running
    model.stand(leader, 2, [second, third])
    new = model._directory()
    model.copy(leader, new)
    model.write()
    model.copy(leader, third)
    assert len(model.acknowledged) == 2
    model.running[2] = new
    for _ in range(2):
        second.learn(leader.voters)
        model.change()
    second.learn(leader.voters)
    model.stand(second, 3, [new])
    return model


def test_a_seat_waits_for_the_rows_of_the_directory_that_left():
    assert seated_too_soon(ALL_RULES).changes == 1
    with pytest.raises(Lost):
        seated_too_soon(BUGS["a seat is given to a directory that lacks rows of the one that left"])


@pytest.mark.parametrize("seats", SIZES)
def test_no_walk_in_which_members_come_and_go_loses_an_acknowledged_row(seats):
    done = [walk(seats, seed, steps=600, sizes=SIZES[seats]) for seed in range(60)]
    assert sum(model.resized for model in done) > 60
    assert sum(len(model.acknowledged) for model in done) > 100


@pytest.mark.parametrize("bug", SEEDS_OF_MEMBERS)
def test_each_planted_bug_of_members_loses_one(bug):
    seats, seed = SEEDS_OF_MEMBERS[bug]
    walk(seats, seed, steps=600, sizes=SIZES[seats])
    with pytest.raises(Lost):
        walk(seats, seed, BUGS_OF_MEMBERS[bug], steps=600, sizes=SIZES[seats])


def grown(rules):
    """A row is at quorum on two of three disks. A fourth, which had caught up before that row, has a seat by now."""
    model = Model(3, 0, rules, sizes=(9,))
    leader, second, third = model.running
    model.stand(leader, 2, [second, third])
    fourth = join(model, leader)
    model.copy(leader, fourth)
    model.write()
    model.copy(leader, second)
    assert len(model.acknowledged) == 2
    model.change()
    tell_all(model, leader)
    assert leader.voters.seats == tuple(each.id for each in (leader, second, third, fourth))
    return model


def join(model, leader):
    """Lets another member join."""
    tell_all(model, leader)
    model.resize()
    tell_all(model, leader)
    return model.running[-1]


def tell_all(model, leader):
    """All members store the leader's record, and promise its term."""
    for each in model.members_of(leader):
        each.learn(leader.voters)
        each.promise(leader.leads)


def dropped_too_soon(rules):
    model = grown(rules)
    leader, _, third, fourth = model.running
    leader.voters = leader.voters.with_leaving("m:2")
    model.recorded(leader)
    tell_all(model, leader)
    model.depart()
    for each in (third, fourth):
        each.learn(leader.voters)
    model.stand(third, 3, [fourth])
    return model


def test_a_seat_is_dropped_only_if_a_majority_holds_the_rows():
    assert len(dropped_too_soon(ALL_RULES).running[2].voters.seats) == 4
    with pytest.raises(Lost):
        dropped_too_soon(BUGS_OF_MEMBERS["a seat is dropped before a majority holds the rows"])


def added_too_soon(rules):
    model = grown(rules)
    leader, _, third, fourth = model.running
    fifth = join(model, leader)
    model.change()
    for each in (third, fourth, fifth):
        each.learn(leader.voters)
    model.stand(third, 3, [fourth, fifth])
    return model


def test_a_seat_is_added_only_for_a_directory_that_has_the_rows():
    assert len(added_too_soon(ALL_RULES).running[2].voters.seats) == 4
    with pytest.raises(Lost):
        added_too_soon(BUGS_OF_MEMBERS["a seat is added for a directory that lacks rows"])


def test_a_record_that_has_changed_meanwhile_is_told_with_its_term():
    """A leader writes the record anew in its term, with the same epoch."""
    before, now = Voters(2, 1, (b"a" * 16,)), Voters(3, 1, (b"a" * 16,))
    file = SimpleNamespace(now=SimpleNamespace(term=4, voters=now))
    promises = GatheredPromises(SimpleNamespace(local=SimpleNamespace(file=file)), "", None)
    promises.term, promises.voters = 4, before
    with pytest.raises(NotLeader) as told:
        promises.require_term()
    seats = f"epoch 1 ({before.seats[0].hex()[:8]})"
    assert str(told.value).endswith(f": it was {seats} of term 2, and is {seats} of term 3")
