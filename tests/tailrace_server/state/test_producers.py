import pytest

from tailrace.model import VersionRange
from tailrace_server.state import producers
from tailrace_server.state.producers import (
    ENTRY_AGE_S_MAX,
    FORGOTTEN_AGE_S_MAX,
    PRODUCERS_MAX,
    RESULTS_MAX,
    ProducerTable,
    ResendDecision,
    ResendVerdict,
)

ACCEPT = ResendDecision(ResendVerdict.ACCEPT)
UNKNOWN = ResendDecision(ResendVerdict.UNKNOWN)
EVICTED_AT = 50.0


def result(number):
    return VersionRange(0, b"u" * 16, 10 * number, 10 * number + 9)


def duplicate(number):
    return ResendDecision(ResendVerdict.DUPLICATE, result(number))


def out_of_order(expected):
    return ResendDecision(ResendVerdict.OUT_OF_ORDER, expected=expected)


def table_with(numbers, producer_id=1, now=0.0):
    table = ProducerTable()
    for number in numbers:
        table.record(producer_id, number, result(number), now)
    return table


@pytest.fixture
def full_table(monkeypatch):
    """A table that has just forgotten producer 1 because there were too many."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    table = table_with(range(1, 4))
    for producer_id in range(2, 5):
        table.record(producer_id, 1, result(1), EVICTED_AT)
    assert len(table) == 3
    return table


# The rows of the module's table, each with the blocks that it speaks of.


@pytest.mark.parametrize("resend", [False, True])
def test_a_number_among_the_last_results_is_a_duplicate(resend):
    table = table_with(range(1, 21))
    for number in range(21 - RESULTS_MAX, 21):
        assert table.decide(1, number, resend=resend, now=1.0) == duplicate(number)


@pytest.mark.parametrize("resend", [False, True])
def test_the_number_that_comes_next_is_accepted(resend):
    assert table_with(range(1, 4)).decide(1, 4, resend=resend, now=1.0) == ACCEPT


@pytest.mark.parametrize("resend", [False, True])
def test_an_unknown_producer_begins_with_1(resend):
    assert ProducerTable().decide(1, 1, resend=resend, now=1.0) == ACCEPT


@pytest.mark.parametrize("resend", [False, True])
def test_any_other_number_is_out_of_order(resend):
    table = table_with(range(1, 21))
    for number in (0, 1, 20 - RESULTS_MAX, 22, 100):
        assert table.decide(1, number, resend=resend, now=1.0) == out_of_order(21)
    for number in (0, 2, 100):
        assert table.decide(2, number, resend=resend, now=1.0) == out_of_order(1)


def test_for_a_day_after_an_eviction_a_resend_without_an_entry_cannot_be_told(full_table):
    for number in (1, 4):
        assert full_table.decide(1, number, resend=True, now=EVICTED_AT) == UNKNOWN
        assert full_table.decide(1, number, resend=True, now=EVICTED_AT + FORGOTTEN_AGE_S_MAX - 1) == UNKNOWN
    after = EVICTED_AT + FORGOTTEN_AGE_S_MAX
    assert full_table.decide(1, 1, resend=True, now=after) == ACCEPT
    assert full_table.decide(1, 4, resend=True, now=after) == out_of_order(1)


def test_an_eviction_concerns_resends_only(full_table):
    assert full_table.decide(1, 1, resend=False, now=EVICTED_AT) == ACCEPT
    assert full_table.decide(1, 4, resend=False, now=EVICTED_AT) == out_of_order(1)
    assert full_table.decide(4, 1, resend=True, now=EVICTED_AT) == duplicate(1)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_resend_of_a_producer_that_was_forgotten_for_its_age_cannot_be_told(monkeypatch, restarts):
    """A client that was paused for that long sends again what it had sent: it is not new."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    table = table_with([1, 2, 3])
    table.record(2, 1, result(1), ENTRY_AGE_S_MAX)
    if restarts:
        entries, evicted_age_s = table.snapshot(ENTRY_AGE_S_MAX)
        table = ProducerTable()
        table.restore(entries, evicted_age_s, ENTRY_AGE_S_MAX)
    table.record(3, 1, result(1), ENTRY_AGE_S_MAX)
    assert len(table) == 2, "producer 1 is over its age, and no other one had to go"
    for number in (1, 3):
        assert table.decide(1, number, resend=True, now=ENTRY_AGE_S_MAX) == UNKNOWN
        assert table.decide(1, number, resend=True, now=FORGOTTEN_AGE_S_MAX) == UNKNOWN
    assert table.decide(1, 4, resend=False, now=ENTRY_AGE_S_MAX) == out_of_order(1)
    assert table.decide(1, 1, resend=False, now=ENTRY_AGE_S_MAX) == ACCEPT


def test_the_least_recently_used_goes_first(monkeypatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    table = table_with([1])
    table.record(2, 1, result(1), 1.0)
    table.record(1, 2, result(2), 2.0)
    table.record(3, 1, result(1), 3.0)
    assert table.decide(1, 3, resend=True, now=3.0) == ACCEPT
    assert table.decide(2, 1, resend=True, now=3.0) == UNKNOWN


def test_deciding_changes_nothing():
    table = table_with(range(1, 4))
    for number in range(10):
        table.decide(1, number, resend=True, now=1.0)
        table.decide(2, number, resend=True, now=1.0)
    assert len(table) == 1
    assert table.decide(1, 4, resend=False, now=1.0) == ACCEPT


def test_bounds():
    assert RESULTS_MAX == 16
    assert PRODUCERS_MAX == 10_000


def test_a_snapshot_is_remembered_with_its_ages():
    table = table_with(range(1, 21), producer_id=7, now=100.0)
    table.record(8, 1, result(1), 130.0)
    entries, evicted_age_s = table.snapshot(140.0)
    assert [(entry.producer_id, entry.last_number, entry.age_s) for entry in entries] == [(7, 20, 40.0), (8, 1, 10.0)]
    assert entries[0].results == tuple((number, result(number)) for number in range(5, 21))
    assert evicted_age_s is None
    other = table_with([1], producer_id=9)
    other.restore(entries, evicted_age_s, 1_000.0)
    assert other.snapshot(1_000.0) == (entries, None)
    assert other.decide(7, 20, resend=True, now=1_000.0) == duplicate(20)
    assert other.decide(7, 21, resend=False, now=1_000.0) == ACCEPT
    assert other.decide(9, 2, resend=False, now=1_000.0) == out_of_order(1)


def test_a_snapshot_leaves_out_what_is_over_its_age():
    table = table_with([1], producer_id=7, now=0.0)
    table.record(8, 1, result(1), 1.0)
    entries, forgotten_s = table.snapshot(ENTRY_AGE_S_MAX + 0.5)
    assert [entry.producer_id for entry in entries] == [8]
    assert forgotten_s == 0.5, "since when it is over its age"


def test_a_snapshot_knows_of_an_eviction_for_a_day(full_table):
    entries, evicted_age_s = full_table.snapshot(EVICTED_AT + 60)
    assert evicted_age_s == 60
    table = ProducerTable()
    table.restore(entries, evicted_age_s, 5.0)
    assert table.decide(1, 4, resend=True, now=5.0) == UNKNOWN
    assert table.decide(1, 4, resend=True, now=5.0 + FORGOTTEN_AGE_S_MAX - 60) == out_of_order(1)
    assert ProducerTable().snapshot(0.0) == ([], None)


def test_producers_for_which_two_tables_together_have_no_room_count_as_forgotten(monkeypatch):
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    held, told = table_with([1], producer_id=1), table_with([2], producer_id=2, now=1.0)
    told.record(3, 3, result(3), 1.0)
    held.join_told(told, 19, 39, 2.0)
    assert held.decide(1, 1, resend=True, now=3.0) == UNKNOWN, "it was written, and is known no more"
    assert held.decide(4, 1, resend=False, now=3.0) == ACCEPT
    assert held.snapshot(3.0)[1] == 1.0, "said with the table, wherever it goes"
