from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import NotLeader
from tailrace_server.replication.read_index import Confirmations

A, B, C = b"a", b"b", b"c"


def made(majority=2):
    asked = []
    return Confirmations(majority - 1, asked.append), asked


def test_a_node_without_voters_beside_it_knows():
    confirmations, asked = made(1)
    told = []
    confirmations.confirm(told.append)
    assert (told, asked) == ([None], [])


def test_a_round_that_was_counted_by_another_record_begins_anew():
    confirmations, asked = made(2)
    told = []
    confirmations.confirm(told.append)
    confirmations.recount(2)
    assert asked == [1, 2]
    confirmations.answered(A, 1)
    confirmations.answered(A, 2)
    assert not told
    confirmations.answered(B, 2)
    assert told == [None]


def test_a_majority_has_to_answer():
    confirmations, asked = made(3)
    told = []
    confirmations.confirm(told.append)
    assert asked == [1]
    confirmations.answered(A, 1)
    confirmations.answered(A, 1)
    assert told == []
    confirmations.answered(B, 1)
    assert told == [None]
    assert not confirmations.under_way


def test_who_comes_while_a_round_is_under_way_waits_for_the_next():
    confirmations, asked = made()
    told = []
    confirmations.confirm(lambda error: told.append(1))
    confirmations.confirm(lambda error: told.append(2))
    confirmations.confirm(lambda error: told.append(3))
    assert asked == [1]
    confirmations.answered(A, 1)
    assert (told, asked) == ([1], [1, 2])
    confirmations.answered(B, 1)
    assert told == [1], "that was an answer to an older question"
    confirmations.answered(B, 2)
    assert told == [1, 2, 3]


def test_all_hear_that_the_node_leads_no_more():
    confirmations, _ = made()
    told, error = [], NotLeader("no more")
    confirmations.confirm(told.append)
    confirmations.confirm(told.append)
    confirmations.fail(error)
    assert told == [error, error]
    confirmations.answered(A, 1)
    assert told == [error, error]


@given(st.lists(st.sampled_from(["confirm", "fail", A, B, C]), max_size=40))
def test_each_is_told_once_and_never_by_an_older_question(steps):
    confirmations, asked = made(3)
    told, rounds_before, answers = {}, {}, []

    def tell(number, error):
        assert number not in told, "told twice"
        told[number] = error
        if error is None:
            question = answers[-1][1]
            assert len({voter for voter, of in answers if of == question}) >= 2
            assert question > rounds_before[number], "the question was older"

    for number, step in enumerate(steps):
        if step == "confirm":
            rounds_before[number] = len(asked)
            confirmations.confirm(partial(tell, number))
        elif step == "fail":
            confirmations.fail(NotLeader("no more"))
            assert len(told) == len(rounds_before)
        elif asked:
            answers.append((step, asked[-1]))
            confirmations.answered(*answers[-1])
    assert confirmations.under_way == (len(told) < len(rounds_before))
