"""What a member owes: told, paid by who has as much, and void with its feed."""

import pytest

from tailrace_server.replication.debts import FEEDS, Debt, debts_from_json, debts_to_json, unpaid, with_debt
from tailrace_server.replication.standings import PartitionId, Standing

A, B = PartitionId(b"a" * 16, 0), PartitionId(b"a" * 16, 1)
OWED = Debt(A, Standing(2, 80))


@pytest.mark.parametrize(
    ("held", "is_paid"),
    [((2, 79), False), ((1, 90), False), ((2, 80), True), ((2, 81), True), ((3, 10), True)],
    ids=str,
)
def test_a_debt_is_paid_by_as_much_of_its_history_or_by_a_later_one(held, is_paid):
    assert unpaid([OWED], {A: Standing(*held)}) == (() if is_paid else (OWED,))


def test_what_was_dropped_is_owed_no_more():
    assert unpaid([OWED], {FEEDS: Standing(1, 1), B: Standing(1, 1)}) == ()


def test_what_is_not_there_is_owed_while_its_row_in_the_list_of_feeds_may_be_missing():
    feeds = Debt(FEEDS, Standing(2, 5))
    assert unpaid([feeds, OWED], {FEEDS: Standing(2, 4)}) == (feeds, OWED)
    assert unpaid([feeds, OWED], {FEEDS: Standing(2, 5)}) == ()


def test_what_is_not_there_is_owed_while_another_group_owes_rows_of_the_list_of_feeds():
    assert unpaid([OWED], {B: Standing(1, 1)}, owes_feeds=True) == (OWED,)
    assert unpaid([OWED], {A: Standing(2, 80)}, owes_feeds=True) == ()


def test_the_higher_debt_of_a_partition_holds():
    for debts in ([OWED, Debt(A, Standing(2, 70))], [Debt(A, Standing(2, 70)), OWED]):
        assert with_debt(debts[:1], debts[1]) == (OWED,)
    assert with_debt([OWED], Debt(B, Standing(1, 1))) == (OWED, Debt(B, Standing(1, 1)))


def test_they_are_read_as_they_were_told():
    debts = (OWED, Debt(FEEDS, Standing(1, 3)))
    assert debts_from_json(debts_to_json(debts)) == debts


@pytest.mark.parametrize(
    "value", [None, "", {}, [1], [["zz", 0, 1, 1]], [["aa", 0, 1, 1]], [["aa" * 16, 0, 1]], [["aa" * 16, 0, 1, -1]]]
)
def test_what_is_none_is_refused(value):
    with pytest.raises(ValueError, match="debt"):
        debts_from_json(value)
